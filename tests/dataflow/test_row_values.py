"""Values of rows: None among them, columns of a batch, digests, and how long values are."""

from __future__ import annotations

import pytest
import torch
from exact_values import same

from softs_fast.dataflow.batch import Rows
from softs_fast.dataflow.moves import DataManager
from softs_fast.dataflow.parallel.cutting import lengths_of
from softs_fast.dataflow.values import Value, cut, digest_of, join, length_of, n_bytes_of
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
    with pytest.raises(FlowError, match="is a NoneType; need a tensor"):
        cut("x", None, 3)
    with pytest.raises(FlowError, match="column 'x' has a list"):
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
