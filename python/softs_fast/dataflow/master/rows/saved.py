"""What of the rows a common save holds, and a table of rows that goes on from there."""

from __future__ import annotations

from typing import Annotated, Any

from ....records import Count, Message, most, span
from .losses import go_without
from .queue import ReadyQueue
from .records import Group, Name
from .table import RowTable

__all__ = [
    "NEW",
    "Counts",
    "SavedGroup",
    "SavedPartition",
    "SavedRows",
    "admit_again",
    "n_taken",
    "restore_rows",
    "saved_rows",
]

#: Id of a group that has not been admitted yet.
NEW = -1

#: Counts by name.
Counts = Annotated[dict[Name, Count], most(1 << 16)]


class SavedGroup(Message):
    """A group that is admitted again; what functions had made of it is in `MadeGroup`, or is made again.

    Attributes:
        partition: Name of its partition.
        first_id: Id of the first of its rows; `NEW` if it has none yet.
        used_by: Functions without outputs that are through with it, training functions among them: they do not get
            it again.
    """

    partition: Name
    first_id: Annotated[int, span(NEW, (1 << 63) - 1)]
    used_by: Annotated[tuple[Name, ...], most(1 << 16)]


class SavedPartition(Message):
    """Counts of a partition.

    Attributes:
        used: groups that all functions are through with.
        dropped: groups that were dropped, by reason.
        complete: steps.
    """

    used: Count
    dropped: Annotated[dict[Annotated[str, most(1 << 16)], Count], most(1 << 16)]
    complete: Count


class SavedRows(Message):
    """Counts of all rows. What functions have made of groups that are not complete is elsewhere, see `MadeGroup`.

    Attributes:
        next_id: Id of the next new row.
        partitions: Counts of each partition, by name.
        n_taken: Number of uses of groups taken, by function, see `ReadyQueue`.
        n_calls: Number of calls of each function; hooks with `every` count them.
    """

    next_id: Count
    partitions: Annotated[dict[Name, SavedPartition], most(1 << 10)]
    n_taken: Counts
    n_calls: Counts


def saved_rows(table: RowTable) -> tuple[SavedRows, list[tuple[SavedGroup, int]]]:
    """Return what a save holds, and each group that is not complete with the id of its first row that is there."""
    partitions, groups = {}, []
    for name, number in table._partitions.items():
        counts, own = table.counts[name], list(table._groups[number].values())
        partitions[name] = SavedPartition(counts.live - len(own), dict(counts.dropped), counts.complete)
        groups += [(_saved_group(table, name, group), group.ids[0]) for group in own]
    # Those of several partitions in the order in which they were admitted.
    groups.sort(key=lambda one: one[1])
    n_taken = {queue.plan.name: queue.n_taken + _n_left_out(table, queue) for queue in table._queues}
    n_calls = {queue.plan.name: queue._n_calls for queue in table._queues}
    return SavedRows(table._next_id, partitions, n_taken, n_calls), groups


def _n_left_out(table: RowTable, queue: ReadyQueue) -> int:
    """Return how many uses of groups a training function goes without that it has not taken yet."""
    own = table._groups[queue.partition].values() if queue.plan.is_strict else ()
    return sum(
        queue.plan.reuse - (group.uses or {}).get(queue.number, 0)
        for group in own
        if group.without & queue.bit and not (group.taken | group.done) & queue.bit
    )


def _saved_group(table: RowTable, name: str, group: Group) -> SavedGroup:
    through = group.done | group.without
    used = [queue.plan.name for queue in table._queues if through & queue.bit and not queue.plan.outputs]
    return SavedGroup(name, group.ids[0], tuple(used))


def restore_rows(table: RowTable, saved: SavedRows) -> None:
    """Have a table without rows go on from a save; groups that were not complete follow by `admit_again`."""
    table._next_id = saved.next_id
    for name, one in saved.partitions.items():
        counts = table.counts[name]
        counts.dropped = dict(one.dropped)
        counts.admitted = one.used + sum(one.dropped.values())
        counts.complete = one.complete
    for queue in table._queues:
        queue.n_taken = saved.n_taken[queue.plan.name]
        queue._n_calls = saved.n_calls[queue.plan.name]
        used = saved.partitions[queue.plan.partition].used
        table._n_begun[queue.number] = table._n_through[queue.number] = used


def admit_again(table: RowTable, group: SavedGroup, **columns: Any) -> tuple[int, ...]:
    """Add a group of a save with the ids that it had; returns them. The rest is as in `RowTable.admit`.

    Functions that are through with it do not get it. If a training function is, what it had read is not there, so others
    go without the group, until `restore_made` gives it back.

    Raises:
        ValueError: there is no slot.
    """
    next_id, table._next_id = table._next_id, group.first_id
    try:
        ids = table.admit(group.partition, **columns)
    finally:
        table._next_id = max(next_id, table._next_id)
    one = table._rows[ids[0]]
    for name in group.used_by:
        queue = table._by_name[name]
        one.done |= queue.bit
        one.places[queue.number] = table._n_begun[queue.number]
        table._n_begun[queue.number] += 1
        table._n_through[queue.number] += 1
        queue.discard(one)
    lost = 0
    for queue in table._own[one.partition]:
        if queue.plan.is_strict and one.done & queue.bit:
            lost |= table._learned[queue.number] & ~one.have
    if lost:
        go_without(table, one, lost)
    return ids


def n_taken(table: RowTable, function: str) -> int:
    """Return how many uses of groups a function has taken; see `ReadyQueue`."""
    return table._by_name[function].n_taken
