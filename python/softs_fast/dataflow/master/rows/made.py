"""What functions have made of groups that are not complete: what a save keeps of it, and a table that has it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated

from ....errors import WireError
from ....records import Count, Message, most, span
from ...declare.calls import TRAIN
from ...declare.plan import FlowPlan
from .losses import make_again, regain
from .queue import ReadyQueue
from .records import Group, Name, Tags
from .table import RowTable

__all__ = ["Bound", "MadeGroup", "bound_of", "is_recent", "made_groups", "restore_made"]

_Names = Annotated[tuple[Name, ...], most(1 << 16)]


@dataclass(frozen=True)
class Bound:
    """What bounds the age of rows.

    Attributes:
        age: Largest age of a group when a training function takes it, in steps.
        window: Number of groups among which a strict function may choose, see `FlowPlan`.
    """

    age: int
    window: int


class MadeGroup(Message):
    """What is kept of one group of the training partition.

    Attributes:
        first_id: Id of the first of its rows.
        n_rows: Number of its rows.
        n_bytes: Bytes of all columns of its rows.
        version: Version of the weights that made them.
        done: Functions that are through with it, and run again only if what they made is missing and needed.
        columns: Columns that functions have made, and that are complete.
        tags: Tags of each row.
        uses: Number of times that functions with reuse have used it, by function.
    """

    first_id: Count
    n_rows: Annotated[int, span(1, 1 << 20)]
    n_bytes: Count
    version: Count
    done: _Names
    columns: _Names
    tags: Annotated[tuple[Tags, ...], most(1 << 20)]
    uses: Annotated[dict[Name, Count], most(1 << 16)]

    def __post_init__(self) -> None:
        if len(self.tags) != self.n_rows:
            raise WireError(f"a group has {self.n_rows} rows and tags of {len(self.tags)}")

    @property
    def ids(self) -> range:
        """Ids of its rows."""
        return range(self.first_id, self.first_id + self.n_rows)


def made_groups(table: RowTable) -> list[MadeGroup]:
    """Return what is finished of groups that are not complete, the oldest first; groups of which nothing is are left out.

    A column counts if the call that made it has its answer, with its hooks. Those that were made of other columns do not
    count: such a call is made again, and then the columns of a row that a function reads would not belong together.
    """
    number = table._partitions[TRAIN]
    own = table._own[number]
    found = (_made(table, own, group) for group in list(table._groups[number].values()))
    return [one for one in found if one.columns]


def _made(table: RowTable, own: list[ReadyQueue], group: Group) -> MadeGroup:
    void, made, done = 0, 0, []
    for queue in own:  # each after those that it reads from
        is_done = bool(group.done & queue.bit)
        if queue.makes and not queue.plan.is_strict and (not is_done or queue.needs & void):
            void |= queue.makes
        elif is_done:
            done.append(queue.plan.name)
            made |= queue.makes
    columns = tuple(name for name, column in table._columns.items() if made & group.have & 1 << column)
    uses = {table._queues[function].plan.name: n for function, n in (group.uses or {}).items()}
    tags = tuple(dict(one) for one in group.tags or [{} for _ in group.ids])
    ids = group.ids
    return MadeGroup(ids[0], len(ids), group.n_bytes, group.version, tuple(done), columns, tags, uses)


def bound_of(plan: FlowPlan) -> Bound:
    """Return what bounds the age of rows in a flow."""
    return Bound(plan.partitions[TRAIN].age_bound, plan.window)


def is_recent(plan: FlowPlan, saved: Bound, version: int, n_before: int) -> bool:
    """Return whether a group is within the bound of the age whenever a training function takes it.

    It is if the bound is as it was, or wider. `ahead` and `window` may have been changed since the save.

    Args:
        plan: Plan of the flow.
        saved: Bound of its age at the time of the save.
        version: Version of the weights that made it.
        n_before: Upper bound of the number of groups that were admitted before it, and not dropped.

    Source: own, see docs/dataflow_failures.md, "Journal and resume".
    """
    bound = bound_of(plan)
    if bound.age >= saved.age and bound.window <= saved.window:
        return True
    # At most `window - 1` younger groups overtake it.
    window = max(bound.window, saved.window)
    last_step = (n_before + window - 1) // plan.partitions[TRAIN].groups_per_step
    return last_step - version <= bound.age


def restore_made(table: RowTable, made: MadeGroup, columns: Mapping[str, int]) -> None:
    """Give a group that was admitted again what functions had made of it.

    Functions that had made what is missing run again if it is needed, and so do those that had used it; training functions
    never do.

    Args:
        table: Table that has the group, with the columns of the source.
        made: Saved record of the group.
        columns: Columns that are there, with the bytes of each row.
    """
    group = table._rows[made.first_id]
    regain(table, group)
    own = {queue.plan.name: queue for queue in table._own[group.partition]}
    for queue in [own[name] for name in made.done if name in own]:
        if not group.done & queue.bit and _may_be_done(queue, columns):
            group.done |= queue.bit
            group.places[queue.number] = table._n_begun[queue.number]
            table._n_begun[queue.number] += 1
            table._n_through[queue.number] += 1
            queue.discard(group)
    group.version = made.version
    group.uses = {own[name].number: n for name, n in made.uses.items() if name in own} or None
    group.tags = [dict(tags) for tags in made.tags]
    for queue in own.values():
        names = [name for name in queue.plan.outputs if name in columns]
        if names and group.done & queue.bit:
            table.wrote(made.ids, names, n_bytes=sum(columns[name] for name in names))
    make_again(table, group)


def _may_be_done(queue: ReadyQueue, columns: Collection[str]) -> bool:
    """A training function cannot make its columns again, so without them it gets the group once more."""
    return not queue.plan.is_strict or set(queue.plan.outputs) <= set(columns)
