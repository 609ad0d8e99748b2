"""Pieces of a file of rows: each reader reads its own, and of these what is wanted."""

from __future__ import annotations

from pathlib import Path

import torch

from softs_fast.dataflow.master.rows.made import Bound, MadeGroup
from softs_fast.dataflow.process.row_files.row_file import RowFile
from softs_fast.dataflow.process.row_files.writer import RowFileWriter

GROUPS = [MadeGroup(4 * i, 2, 8, 0, ("make",), ("a", "b"), ({}, {}), {}) for i in range(4)]


def file_of(path: Path) -> RowFile:
    """Return a file with two pieces of "a" and one of "b"; the value of a row is its id, and half of it in "b"."""
    writer = RowFileWriter(path)
    for column, groups, scale in (("a", GROUPS[:2], 1.0), ("a", GROUPS[2:], 1.0), ("b", GROUPS, 0.5)):
        writer.add(column, groups, [torch.tensor([scale * row_id]) for one in groups for row_id in one.ids])
    writer.end(GROUPS, Bound(1, 1))
    writer.close()
    return RowFile(path)


def test_a_reader_gets_its_pieces_and_of_these_what_is_wanted(tmp_path: Path) -> None:
    file = file_of(tmp_path / "rows")
    assert file.pieces == (("a", (0, 4)), ("a", (8, 12)), ("b", (0, 4, 8, 12)))
    found = [(one.name, one.ids) for one in file.columns(GROUPS, [0, 1, 2])]
    assert found == [("a", (0, 1, 4, 5)), ("a", (8, 9, 12, 13)), ("b", (0, 1, 4, 5, 8, 9, 12, 13))]
    (one,) = file.columns([GROUPS[1], GROUPS[3]], [1])
    assert (one.name, one.ids, torch.cat(one.values).tolist()) == ("a", (12, 13), [12.0, 13.0])  # type: ignore[arg-type]
    (one,) = file.columns([GROUPS[1]], [2])
    assert (one.name, one.ids, torch.cat(one.values).tolist()) == ("b", (4, 5), [2.0, 2.5])  # type: ignore[arg-type]


def test_pieces_without_what_is_wanted_and_those_that_are_not_there_give_nothing(tmp_path: Path) -> None:
    file = file_of(tmp_path / "rows")
    assert list(file.columns([GROUPS[0]], [1, 3, 1 << 20])) == []
    assert list(file.columns([], [0, 1, 2])) == []
