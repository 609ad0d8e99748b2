"""All values of a column have the form of its first one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.forms import ColumnForms, ValueForm, forms_of
from softs_fast.errors import FlowError

FLOAT = torch.ones(2)
VALUES = [
    None,
    FLOAT,
    torch.ones(3),
    1,
    True,
    0.5,
    "a",
    b"a",
    [FLOAT],
    [],
    FLOAT.double(),
    torch.ones(2, 2),
    None,
]
FORMS = {
    ValueForm("tensor", "float32", "cpu", 1): 1,
    ValueForm("number"): 3,
    ValueForm("text"): 6,
    ValueForm("bytes"): 7,
    ValueForm("list of tensors"): 8,
    ValueForm("tensor", "float64", "cpu", 1): 10,
    ValueForm("tensor", "float32", "cpu", 2): 11,
}


def test_the_forms_of_values_and_of_their_places_are_the_same() -> None:
    assert forms_of(VALUES) == FORMS
    with DataManager(0, max_bytes=1 << 20) as store:
        places = store.put("x", range(len(VALUES)), VALUES)
        assert forms_of(places) == FORMS
        assert forms_of(list(places)) == FORMS
    assert forms_of([None]) == {}
    assert forms_of([torch.empty(2, device="meta")]) == {ValueForm("tensor", "float32", "meta", 1): 0}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            [FLOAT, FLOAT.double()],
            "a float64 tensor of 1 dimension on cpu; expected a float32 tensor of 1 dimension",
        ),
        (
            [FLOAT, torch.ones(())],
            "a float32 tensor of 0 dimensions on cpu; expected a float32 tensor of 1 dimension",
        ),
        (
            [FLOAT, FLOAT.to("meta")],
            "a float32 tensor of 1 dimension on meta; expected a float32 tensor of 1 dimension on cpu",
        ),
        ([FLOAT, 1.0], "a number; expected a float32 tensor"),
        (["a", b"a"], "bytes; expected a text, as row 7 has"),
    ],
)
def test_another_form_is_an_error_with_column_row_and_both_forms(values: Sequence[Any], text: str) -> None:
    forms = ColumnForms()
    forms.check("train", "y", forms_of(values[:1]), [7], "a.score")
    forms.check("train", "y", forms_of([None, values[0]]), [8, 9], "a.score")
    forms.check("val", "y", forms_of(values[1:]), [8], "b.score")
    with pytest.raises(FlowError, match=rf"column 'y' of a.score: row 9 has {text}"):
        forms.check("train", "y", forms_of([values[0], values[1]]), [8, 9], "a.score")


class Actor(df.Role):
    def setup(self, mesh: df.Mesh) -> None:
        self.n = 0

    def score(self, rows: df.Rows) -> dict[str, Any]:
        self.n += 1
        return {"reward": rows["x"].double() if self.n == 3 else rows["x"]}

    def train(self, rows: df.Rows) -> None:
        assert isinstance(rows["reward"], torch.Tensor)


def flow_of(source: Iterator[Any]) -> df.Flow:
    actor = df.place(Actor, name="actor")
    calls = [df.call(actor.score, "x -> reward", rows=2), df.call(actor.train, "reward", rows=4)]
    return df.Flow(calls, source=({"x": one} for one in source))


def test_a_function_that_changes_its_dtype_fails_and_no_training_sees_it() -> None:
    with (
        flow_of(itertools.repeat(torch.tensor(1.0))) as flow,
        pytest.raises(
            FlowError,
            match=r"actor.score failed on 2 rows \[4, 5\]: .* column 'reward' of actor.score: row 4 has a float64 tensor of "
            r"0 dimensions on cpu; expected a float32 tensor of 0 dimensions on cpu, as row 0 has",
        ),
    ):
        list(flow.steps(3))


def test_a_source_that_changes_its_dtype_is_named() -> None:
    with (
        flow_of(
            torch.tensor(i, dtype=torch.int64 if i == 5 else torch.float32) for i in itertools.count()
        ) as flow,
        pytest.raises(
            FlowError,
            match=r"column 'x' of the source of partition 'train': row of group 5 has an int64 tensor .* as row of group 0 has",
        ),
    ):
        list(flow.steps(3))
