"""Orders to bring rows: what was sent arrives, and what no flow has is refused."""

from __future__ import annotations

from typing import Any

import pytest
from wire_samples import SAMPLES, place

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import Columns, MoveTask, decode, encode
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.process.orders import message_of, work_of
from softs_fast.dataflow.process.work import name_of
from softs_fast.errors import WireError
from softs_fast.records import replace


class Model(df.Role):
    def make(self, rows: df.Rows) -> None: ...


model = df.place(Model, name="model")
declaration = Declaration((df.call(model.make, "x -> y", rows=2),))
STEP = Step(Kind.MOVE, frozenset({0}), ticket=5, call=3)
(SAMPLE,) = [one for one in SAMPLES if isinstance(one, MoveTask)]


def test_a_move_is_the_same_at_the_worker() -> None:
    work = MoveTask(5, 3, (4, 5), Columns.of({"y": [place(1), place(2)], "x": [place(3), place(4)]}))
    message = decode(encode(message_of(declaration, STEP, work)))
    assert isinstance(message, MoveTask)
    assert work_of(declaration, message) == work
    assert name_of(work) == "data_transfer"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"columns": Columns.of({"x": [place(1)]})}, "a MoveTask has 2 ids and a column of 1 values"),
        ({"ids": (-1, 5)}, "MoveTask.ids.0.: Expected int >= 0"),
    ],
)
def test_what_is_no_message_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WireError, match=complaint):
        decode(encode(replace(SAMPLE, **changes)))


def test_columns_that_the_flow_does_not_have_are_refused() -> None:
    (places,) = SAMPLE.columns.places.values()
    with pytest.raises(WireError, match="rows are brought with z, which no function has"):
        work_of(declaration, replace(SAMPLE, columns=Columns.of({"z": places})))
    packed = SAMPLE.columns.packed()
    for names, rows in ((("x", "x"), packed.rows * 2), (("x", "y"), packed.rows)):
        columns = replace(packed, names=names, rows=rows)
        with pytest.raises(WireError, match=f"{len(rows)} columns have the names {', '.join(names)}"):
            decode(encode(replace(SAMPLE, columns=columns)))
