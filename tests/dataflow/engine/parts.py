"""Calls of roles on several workers, with places as workers report them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import softs_fast.dataflow as df
from softs_fast.dataflow.link.messages import Columns, MainTask
from softs_fast.dataflow.master.rows.records import Tag
from softs_fast.dataflow.store import Place, SegmentAddress

SEGMENT = SegmentAddress(17, 12345, 4026531836, 5, bytes(16), 1 << 40, "", "")


class Model(df.Role):
    def generate(self, rows: df.Rows) -> None: ...
    def read(self, rows: df.Rows) -> None: ...


def place(length: int, holder: int) -> Place:
    """A float32 [length] of a worker."""
    return Place(holder, SEGMENT, 0, 4 * length, 1, "tensor", (("float32", (length,)),))


def work_of(ids: Sequence[int], lengths: Sequence[int], holders: Sequence[int]) -> MainTask:
    """A call that reads one column of rows, and one of numbers."""
    column = [place(length, holder) for length, holder in zip(lengths, holders, strict=True)]
    number = [Place(9, SEGMENT, 0, 8, 1, "int", ()) for _ in ids]
    tags: tuple[dict[str, Tag], ...] = tuple({"id": row_id} for row_id in ids)
    return MainTask(
        *(5, 3, "many.read", tuple(ids), Columns.of({"x": column, "i": number}), tags, 3, 0, True, 1)
    )


def random_work(chance: np.random.Generator, group: int, n_workers: int, *, is_ragged: bool) -> MainTask:
    """A call of some groups."""
    n = int(chance.integers(1, 12)) * group
    ids = (chance.permutation(1000)[:n]).tolist()
    lengths = chance.integers(1, 99, n).tolist() if is_ragged else [5] * n
    return work_of(ids, lengths, chance.integers(0, n_workers + 1, n).tolist())
