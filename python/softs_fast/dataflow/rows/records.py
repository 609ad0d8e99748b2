"""What is known of a row, of a group of rows, and of the rows of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ...records import most

__all__ = ["Counts", "Group", "Name", "Row", "Tag", "Tags", "Taken"]

#: A small value that filters and samplers use without a tensor.
Tag = int | float | str | bool
#: Of a column, a function or a tag.
Name = Annotated[str, most(1 << 10)]
#: Those of a row, as they are sent and kept.
Tags = Annotated[dict[Name, int | float | bool | Annotated[str, most(1 << 16)]], most(1 << 10)]


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
        again: bits of the functions that have been through it, or have begun, and run again.
        stale: bits of the functions that work on inputs which are made again: their results do not count.
        without: bits of the functions that go without it: what a training function had read of it is lost, and another
            sample in its place would be another row.
        is_held: whether nothing may begin on it, until a training call has its answer that may have read what is lost.
        is_hit: whether a holder of its columns was lost.
        places: for each function how many groups it had begun before this one; -1 if it has not begun it.
        sizes: for each function the bytes that it has added to each row.
        uses: how often functions with reuse have used it, by function; None if none has.
        version: steps that were complete when its weights were.
    """

    __slots__ = (
        "again",
        "done",
        "index",
        "is_held",
        "is_hit",
        "n_ready",
        "partition",
        "places",
        "rows",
        "sizes",
        "staged",
        "stale",
        "taken",
        "uses",
        "version",
        "without",
    )

    def __init__(self, index: int, partition: int, n_functions: int, version: int) -> None:
        self.index = index
        self.partition = partition
        self.rows: list[Row] = []
        self.n_ready = [0] * n_functions
        self.staged = 0
        self.taken = 0
        self.done = 0
        self.again = 0
        self.stale = 0
        self.without = 0
        self.is_held = False
        self.is_hit = False
        self.places = [-1] * n_functions
        self.sizes = [0] * n_functions
        self.uses: dict[int, int] | None = None
        self.version = version

    def tags(self) -> list[Mapping[str, Tag]]:
        """Return the tags of each row."""
        return [row.tags or {} for row in self.rows]


@dataclass(frozen=True)
class Taken:
    """Rows that a call works on.

    Attributes:
        ids: of the rows, group by group.
        groups: their groups, and those that the function goes without.
        step: of the flow, to which they belong: that of the last of them, from 0.
        age: steps of the function since the oldest weights that made one of them; 0 if its age does not count.
        use: which use of the rows it is, from 0.
        ends_step: whether the function has done its part of the step with this call.
        number: which call of the function it is, from 1; -1 if the function was through with the rows before.
        is_repeat: whether it takes the place of a call that was given back.
        n_counted: groups by which it has advanced the pass.
    """

    ids: tuple[int, ...]
    groups: tuple[Group, ...] = field(repr=False)
    step: int = 0
    age: int = 0
    use: int = 0
    ends_step: bool = False
    number: int = 0
    is_repeat: bool = False
    n_counted: int = 0


@dataclass
class Counts:
    """Groups of a partition, since the flow began.

    Attributes:
        admitted: groups that were admitted.
        dropped: groups that were dropped, by reason; the source refills their slots.
        complete: steps that are complete.
    """

    admitted: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    complete: int = 0

    @property
    def live(self) -> int:
        """Groups that were admitted and not dropped."""
        return self.admitted - sum(self.dropped.values())
