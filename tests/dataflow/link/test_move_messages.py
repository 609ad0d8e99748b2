"""Orders to bring rows: what was sent arrives, and what no flow has is refused."""

from __future__ import annotations

from typing import Any

import pytest
from wire_samples import SAMPLES, place

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import Columns, RunMove, decode, encode
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.process.orders import message_of, work_of
from softs_fast.dataflow.process.work import MoveWork, name_of
from softs_fast.errors import WireError
from softs_fast.records import replace


class Model(df.Role):
    def make(self, rows: df.Rows) -> None: ...


model = df.place(Model, name="model")
declaration = Declaration((df.call(model.make, "x -> y", rows=2),))
STEP = Step(Kind.MOVE, frozenset({0}), incarnation=1, ticket=5, call=3)
(SAMPLE,) = [one for one in SAMPLES if isinstance(one, RunMove)]


def test_a_move_is_the_same_at_the_worker() -> None:
    work = MoveWork((4, 5), {"y": [place(1), place(2)], "x": [place(3), place(4)]})
    message = decode(encode(message_of(declaration, STEP, work)))
    assert isinstance(message, RunMove)
    assert work_of(declaration, message) == work
    assert name_of(work) == "data_transfer"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"names": ("x", "y")}, "a RunMove has 2 names and 1 columns"),
        ({"columns": Columns.of([[place(1)]])}, "a RunMove has 2 ids and a column of 1 values"),
        ({"ids": (-1, 5)}, "RunMove.ids.0.: Expected int >= 0"),
    ],
)
def test_what_is_no_message_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(SAMPLE, **changes)))


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (("z",), "rows are brought with z, which no function has"),
        (("x", "x"), "rows are brought with a column twice"),
    ],
)
def test_columns_that_the_flow_does_not_have_are_refused(names: tuple[str, ...], complaint: str) -> None:
    columns = Columns.of([*SAMPLE.columns] * len(names))
    with pytest.raises(WireError, match=complaint):
        work_of(declaration, replace(SAMPLE, names=names, columns=columns))
