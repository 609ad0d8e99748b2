"""What is known of a row, of a group of rows, and of the rows of a call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ....records import most

__all__ = ["Counts", "Group", "Name", "Tag", "Tags", "Taken", "Text"]

#: A small value that filters and samplers use without a tensor.
Tag = int | float | str | bool
#: Of a column, a function or a tag.
Name = Annotated[str, most(1 << 10)]
#: A reason, or what went wrong.
Text = Annotated[str, most(1 << 17)]
#: Those of a row, as they are sent and kept.
Tags = Annotated[dict[Name, int | float | bool | Annotated[str, most(1 << 16)]], most(1 << 10)]


class Group:
    """Rows that stay together: all have a column, or none.

    Attributes:
        index: Number of the group in its partition; a later group has a larger one.
        partition: Number of the partition.
        ids: Ids of the rows; those of a later group are larger.
        have: Bits of the columns that the rows have.
        n_bytes: Bytes of all their columns.
        tags: Small values of each row; None if no row has any.
        staged: Bits of the functions that have it in their queue of ready groups.
        taken: Bits of the functions that work on it.
        done: Bits of the functions that are through with it.
        again: Bits of the functions that have been through it, or have begun, and run again.
        stale: Bits of the functions that work on inputs which are made again: their results do not count.
        without: Bits of the functions that go without it: what a training function had read of it is lost, and
            another sample in its place would be another row.
        is_held: Whether nothing may begin on it, until a training call has its answer that may have read what is
            lost.
        is_hit: Whether a holder of its columns was lost.
        places: Number of groups that each function had begun before this one; -1 if it has not begun it.
        sizes: Bytes that each function has added to each row.
        uses: Number of times that functions with reuse have used it, by function; None if none has.
        version: Number of steps that were complete when its weights were.
    """

    __slots__ = (
        "again",
        "done",
        "have",
        "ids",
        "index",
        "is_held",
        "is_hit",
        "n_bytes",
        "partition",
        "places",
        "sizes",
        "staged",
        "stale",
        "tags",
        "taken",
        "uses",
        "version",
        "without",
    )

    def __init__(self, index: int, partition: int, ids: range, n_functions: int, version: int) -> None:
        self.index = index
        self.partition = partition
        self.ids = ids
        self.have = 0
        self.n_bytes = 0
        self.tags: list[dict[str, Tag]] | None = None
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


@dataclass(frozen=True)
class Taken:
    """Rows that a call works on.

    Attributes:
        ids: Ids of the rows, group by group.
        groups: Groups of these rows, and those that the function goes without.
        step: Step of the flow to which they belong: that of the last of them, from 0.
        age: Steps of the function since the oldest weights that made one of them; 0 if its age does not count.
        use: Number of the use of the rows, from 0.
        ends_step: Whether the function has done its part of the step with this call.
        number: Number of the call of the function, from 1; -1 if the function was through with the rows before.
        is_repeat: Whether it takes the place of a call that was given back.
        n_counted: Number of groups by which it has advanced the pass.
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
