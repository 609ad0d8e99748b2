"""Values of rows: None among them, columns of a batch, digests, and how long values are."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pytest
import torch
from exact_values import same

from softs_fast.dataflow.engine.cutting import lengths_of
from softs_fast.dataflow.process.batch import Rows
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.values import (
    Value,
    cut,
    digest_of,
    join,
    length_of,
    n_bytes_of,
    n_not_finite,
    plain_number,
)
from softs_fast.errors import FlowError

#: Values, and how long they are.
LENGTHS: list[tuple[Value, int]] = [
    (torch.zeros(5, 3), 5),
    (torch.zeros(0, 3), 0),
    (torch.tensor(7), 1),
    ([torch.zeros(2), torch.zeros(3, 9), torch.tensor(1)], 6),
    ([], 0),
    (b"abc", 3),
    ("\u00e4\udcff", 5),
    *((one, 0) for one in (True, 12, 0.5, None)),
]


def rows_of(**columns: list[Value]) -> Rows:
    n = len(next(iter(columns.values())))
    return Rows(
        columns,
        range(n),
        group=1,
        n_padding=0,
        step=0,
        use=0,
        ends_step=True,
        age=0,
        tags=[{} for _ in range(n)],
    )


def test_a_column_may_mix_tensors_and_none() -> None:
    values = cut("x", [torch.ones(2), None, torch.ones(2)], 3)
    assert all(map(same, values, [torch.ones(2), None, torch.ones(2)]))
    column = join(values)
    assert isinstance(column, list)
    assert same(column, values)
    assert join([None, None]) == cut("x", [None, None], 2) == [None, None]
    rows = rows_of(x=values)
    assert isinstance(rows["x"], list)
    assert rows["x"][1] is None
    assert same(rows.values_of("x"), values)
    with pytest.raises(FlowError, match="is a NoneType; expected a tensor"):
        cut("x", None, 3)
    with pytest.raises(FlowError, match="column 'x', row 0 of the batch, has a list of NoneType, Tensor"):
        cut("x", [[torch.ones(2), None]], 1)


def test_none_has_a_digest_of_its_own_and_no_bytes() -> None:
    others: list[Value] = [None, "None", b"None", False, 0, [], "", b"", torch.empty(0)]
    assert len({digest_of([("x", one), ("y", None)]) for one in others}) == len(others)
    assert n_bytes_of(None) == 0
    assert n_bytes_of("\u00e4\udcff") == 5


def test_lengths_of_values_are_those_of_their_places() -> None:
    with DataManager(0, max_bytes=1 << 16) as store:
        for i, (value, length) in enumerate(LENGTHS):
            [place] = store.put("x", [i], [value])
            assert length_of(value) == length
            # Another length beside it, as equal ones are no lengths.
            [other] = store.put("y", [i], [torch.zeros(length + 1)])
            assert lengths_of([[place, other]]) == [length, length + 1]


def test_the_longest_value_of_a_column_and_of_all() -> None:
    rows = rows_of(x=[torch.zeros(4), None, torch.zeros(6)], text=["ab", None, "abcdefgh"], n=[1, 2, None])
    assert [rows.longest(name) for name in ("x", "text", "n")] == [6, 8, 0]
    assert rows.longest() == 8
    with pytest.raises(KeyError):
        rows.longest("y")


def test_the_length_of_rows_is_their_number_and_the_keys_are_the_columns() -> None:
    rows = rows_of(x=[1, 2, 3], y=["a", "b", "c"])
    assert len(rows) == rows.n_rows == 3
    assert list(rows) == list(rows.keys()) == ["x", "y"]
    assert len(rows.keys()) == len(rows.items()) == len(rows.values()) == 2
    assert {**rows} == dict(rows.items()) == {"x": [1, 2, 3], "y": ["a", "b", "c"]}
    assert "z" not in rows


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(-3), -3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (IntEnum("Word", ["A"])["A"], 1),
        (StrEnum("Text", ["A"])["A"], "a"),
        (np.ones(3, np.float32), torch.ones(3)),
        (np.array(7), torch.tensor(7)),
        (np.arange(6)[::-2], torch.tensor([5, 3, 1])),
        (np.broadcast_to(np.float64(1), (2, 2)), torch.ones(2, 2, dtype=torch.float64)),
        ([np.ones(2), torch.zeros(1)], [torch.ones(2, dtype=torch.float64), torch.zeros(1)]),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (torch.ones(1).expand(3), torch.ones(3)),
    ],
)
def test_values_of_numpy_and_of_subclasses_are_plain_ones(given: Any, value: Value) -> None:
    [found] = cut("x", [given], 1)
    assert same(found, value)
    assert type(found) is type(value)


def test_columns_of_numpy_have_a_value_for_each_row() -> None:
    array = np.arange(6.0).reshape(3, 2)[::-1]
    values = cut("x", array, 3)
    array[:] = 7
    assert all(map(same, values, torch.tensor([[4.0, 5], [2, 3], [0, 1]], dtype=torch.float64)))
    assert cut("x", np.array(["a", "b"]), 2) == ["a", "b"]
    assert cut("x", np.array([1, None], object), 2) == [1, None]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": 1}, "column 'x', row 1 of the batch, has a dict; expected a tensor, a list of tensors"),
        ([1.0], "has a list of float; expected"),
        (np.array(["a"]), "has a NumPy array of <U1, which torch does not have"),
        (np.array([1.0], ">f4"), "has a NumPy array of >f4, which torch does not have"),
        (np.datetime64(0, "s"), "has a datetime; expected"),
        (torch.ones(2).to_sparse(), 'row 1 of column "x" is of layout sparse_coo'),
        (torch.ones(2, device="meta"), "on the meta device, without memory"),
        (torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged), "a nested tensor"),
        ([torch.ones(2), torch.ones(2, device="meta")], "on the meta device, without memory"),
    ],
)
def test_what_no_row_can_have_is_refused_with_column_and_row(given: object, text: str) -> None:
    with pytest.raises(FlowError, match=text):
        cut("x", [torch.ones(2), given], 2)


def test_numbers_that_a_function_reports() -> None:
    given = [
        1,
        np.float32(1),
        np.bool_(True),
        np.ones(1),
        torch.ones(()),
        torch.ones(1, 1, dtype=torch.bfloat16),
    ]
    assert [plain_number("it", one) for one in given] == [1.0] * 6
    wrong: list[object] = [
        None,
        "1",
        torch.ones(2),
        np.ones(0),
        1j,
        torch.ones((), dtype=torch.complex64),
        {},
    ]
    for one in wrong:
        with pytest.raises(
            FlowError, match=r"it is a .*; expected a number of Python or NumPy, or a tensor with one"
        ):
            plain_number("it", one)
    with pytest.raises(FlowError, match="it is an integer beyond the range of a float"):
        plain_number("it", 1 << 1025)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.complex64],
)
def test_values_that_are_not_finite_are_counted(dtype: torch.dtype) -> None:
    bad, good = torch.tensor([1.0, math.nan]).to(dtype), torch.ones(2).to(dtype)
    long = good.repeat(10_000)
    assert n_not_finite([good, bad, None, [good, bad], long, torch.cat([long, bad]), bad[:0], "nan"]) == 3
    assert n_not_finite([good, [good, good], long, 1, True, 0.5]) == 0
    assert n_not_finite([math.nan, -math.inf, 1.0, bad, torch.tensor([-math.inf])]) == 4


def test_places_of_rows_are_no_mask() -> None:
    rows = rows_of(x=[1, 2, 3])
    rows.drop(torch.tensor([0, 2]))
    rows.drop(np.array([1]))
    assert rows.dropped == dict.fromkeys(range(3), "filtered")
    for mask in ([True, False, True], np.array([True]), torch.tensor([False])):
        with pytest.raises(
            FlowError, match=r"is a truth value; expected places from 0, such as mask.nonzero"
        ):
            rows.drop(mask)
    with pytest.raises(FlowError, match=r"place 1.0 of a row is a float; expected places"):
        rows.fail([1.0], "it failed")  # type: ignore[list-item]
