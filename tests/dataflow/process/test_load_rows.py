"""What a worker reads of a file of rows: places of what is sound and has room, and never an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from softs_fast.dataflow.declare.hooks import LoadRows
from softs_fast.dataflow.master.rows.made import Bound, MadeGroup
from softs_fast.dataflow.process.row_file import RowFileWriter, load_rows
from softs_fast.errors import FlowError

GROUPS = [MadeGroup(4 * i, 2, 8, 0, ("make",), ("a",), ({}, {}), {}) for i in range(3)]


def a_file(path: Path) -> Path:
    writer = RowFileWriter(path)
    for one in GROUPS:
        writer.add("a", [one], [torch.tensor([row_id]) for row_id in one.ids])
    writer.end(GROUPS, Bound(1, 1))
    writer.close()
    return path


class Store:
    """Takes values of some rows."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused

    def put(self, column: str, ids: Sequence[int], values: Sequence[Any]) -> list[tuple[str, int]]:
        if set(ids) & set(self.refused):
            raise FlowError("no room")
        return [(column, int(value)) for value in values]


def test_rows_and_their_places(tmp_path: Path) -> None:
    result = load_rows(LoadRows((), 1, a_file(tmp_path / "rows"), "a", (2, 0), (0, 8, 4000)), Store().put)
    assert result.ids == (8, 9, 0, 1)
    assert result.columns.places == {"a": [("a", row_id) for row_id in result.ids]}
    assert result.numbers == {}
    assert result.failure is None


def test_what_has_no_room_is_counted(tmp_path: Path) -> None:
    result = load_rows(LoadRows((), 1, a_file(tmp_path / "rows"), "a", (0, 1, 2), (0, 4, 8)), Store(0, 9).put)
    assert (result.ids, result.numbers) == ((4, 5), {"refused": 4.0})


def test_a_file_that_is_damaged_or_gone_gives_nothing(tmp_path: Path) -> None:
    path = a_file(tmp_path / "rows")
    path.write_bytes(path.read_bytes()[:-1])
    for one in (path, tmp_path / "none"):
        result = load_rows(LoadRows((), 1, one, "a", (0,), (0,)), Store().put)
        assert (result.ids, result.columns.places, result.failure) == ((), {"a": []}, None)
