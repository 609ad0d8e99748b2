"""What becomes of a group of rows of which columns are lost: functions run again, or others go without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lineage import remaking
from .queue import ReadyQueue
from .records import Group

if TYPE_CHECKING:
    from .table import RowTable

__all__ = ["go_without", "make_again", "regain"]


def make_again(table: RowTable, group: Group, given_back: ReadyQueue | None = None) -> None:
    """Have functions run again for which a function that has yet to run waits.

    What a training function has used is never made again: another one would learn from another sample than it did. So
    functions that have yet to use the group go without it. While a training call may still find that it cannot read the
    columns, nothing is decided.

    Args:
        table: has the group.
        group: with the columns that its rows have now.
        given_back: see `remaking`.
    """
    own = table._own[group.partition]
    found = remaking(group, own, table._needs, table._makes, given_back)
    if not found.columns:
        return
    readers = [one for one in own if one.plan.is_strict and table._needs[one.number] & found.columns]
    is_used = any(group.done & one.bit or (group.uses or {}).get(one.number) for one in readers)
    is_open = any(group.taken & one.bit for one in readers)
    group.is_hit = True
    if is_used or (is_open and given_back is not None):
        go_without(table, group, found.columns)
    elif not is_open:
        table.n_disturbed += 1
        table.n_made_again += len(group.rows) if found.again else 0
        group.stale |= found.stale
        for row in group.rows:
            table._unmake(row, found.columns)
        for queue in found.again:
            group.done &= ~queue.bit
            group.again |= queue.bit
            table._n_through[queue.number] -= 1
        for queue in found.again:
            table._offer(group, queue)


def go_without(table: RowTable, group: Group, lost: int) -> None:
    """Have functions go without a group that have yet to use it, and need columns that are lost.

    A training function takes the group in its turn, since its calls are of the groups of whole steps, and does not get
    its rows.

    Args:
        table: has the group.
        group: that a training function has used.
        lost: bits of the columns.
    """
    table.n_disturbed += 1
    for row in group.rows:
        table._unmake(row, lost)
    for queue in table._own[group.partition]:
        if (group.taken | group.done) & queue.bit or not table._needs[queue.number] & lost:
            continue
        lost |= table._makes[queue.number]
        if group.without & queue.bit:
            continue
        group.without |= queue.bit
        table.n_left_out += len(group.rows)
        if queue.plan.is_strict:
            table._offer(group, queue)
            continue
        queue.discard(group)
        group.done |= queue.bit
        if group.places[queue.number] < 0:
            group.places[queue.number] = table._n_begun[queue.number]
            table._n_begun[queue.number] += 1
        table._n_through[queue.number] += 1
    if group.done == table._all_done[group.partition]:
        table._remove(group)
    table._complete(list(table._partitions)[group.partition])


def regain(table: RowTable, group: Group) -> None:
    """Have no function go without a group any more: its columns are there, after all."""
    for queue in table._own[group.partition]:
        if group.without & queue.bit:
            table.n_left_out -= len(group.rows)
            group.without &= ~queue.bit
            queue.discard(group)
            if not queue.plan.is_strict:
                group.done &= ~queue.bit
                table._n_through[queue.number] -= 1
                table._n_begun[queue.number] -= 1
                group.places[queue.number] = -1
