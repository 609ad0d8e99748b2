"""What is known of a row and of a group of rows."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Group", "Row", "Tag"]

#: A small value that filters and samplers use without a tensor.
Tag = int | float | str | bool


class Row:
    """One row.

    Attributes:
        id: number of the row; a later row has a larger one.
        group: the rows that it stays together with.
        have: bits of the columns that it has.
        holders: for each column the bits of the workers that hold it.
        n_bytes: of all its columns, once.
        tags: small values; None if there are none.
    """

    __slots__ = ("group", "have", "holders", "id", "n_bytes", "tags")

    def __init__(self, row_id: int, group: Group, n_columns: int) -> None:
        self.id = row_id
        self.group = group
        self.have = 0
        self.holders = [0] * n_columns
        self.n_bytes = 0
        self.tags: dict[str, Tag] | None = None


class Group:
    """Rows that stay together.

    Attributes:
        index: number of the group in its partition; a later group has a larger one.
        partition: number of the partition.
        rows: those that were not dropped.
        n_ready: for each function how many rows have its inputs.
        staged: bits of the functions that have it in their queue of ready groups.
        taken: bits of the functions that work on it.
        done: bits of the functions that are through with it.
        uses: how often functions with reuse have used it, by function; None if none has.
        version: steps that were complete when its weights were.
    """

    __slots__ = ("done", "index", "n_ready", "partition", "rows", "staged", "taken", "uses", "version")

    def __init__(self, index: int, partition: int, n_functions: int, version: int) -> None:
        self.index = index
        self.partition = partition
        self.rows: list[Row] = []
        self.n_ready = [0] * n_functions
        self.staged = 0
        self.taken = 0
        self.done = 0
        self.uses: dict[int, int] | None = None
        self.version = version

    def tags(self) -> list[Mapping[str, Tag]]:
        """Return the tags of each row."""
        return [row.tags or {} for row in self.rows]
