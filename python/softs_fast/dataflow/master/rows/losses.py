"""What becomes of a group of rows of which columns are lost: functions run again, or others go without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .lineage import Remaking, remaking
from .queue import ReadyQueue
from .records import Group

if TYPE_CHECKING:
    from .table import RowTable

__all__ = ["go_without", "learned_from", "make_again", "regain"]


def make_again(table: RowTable, group: Group, given_back: ReadyQueue | None = None) -> None:
    """Have functions run again for which a function that has yet to run waits.

    What a training function has used is never made again: another one would learn from another sample than it did. So
    functions that have yet to use the group go without it. While a training call is open that may have read the columns,
    or not, nothing begins on the group.

    Args:
        table: Table that has the group.
        group: Group with the columns that its rows have now.
        given_back: Function of which a call was given back, see `remaking`.
    """
    own = table._own[group.partition]
    found = remaking(group, own, table._needs, table._makes, given_back)
    used = [one for one in own if group.done & one.bit or (group.uses or {}).get(one.number)]
    lost = _read(table, used) & ~_have(group, found)
    if lost:
        go_without(table, group, lost)
        if group.index not in table._groups[group.partition]:
            return
        found = remaking(group, own, table._needs, table._makes, given_back)
    was_held = group.is_held
    group.is_held = bool(_read(table, [one for one in own if group.taken & one.bit]) & ~_have(group, found))
    if found.columns:
        group.is_hit = True
        table.n_disturbed += 1
        for row in group.rows:
            table._unmake(row, found.columns)
    if group.is_held:
        group.is_hit = True
        for queue in own:
            queue.discard(group)
        return
    table.n_made_again += len(group.rows) if found.again else 0
    group.stale |= found.stale
    for queue in found.again:
        group.done &= ~queue.bit
        group.again |= queue.bit
        table._n_through[queue.number] -= 1
    for queue in own if was_held else found.again:
        table._offer(group, queue)


def learned_from(own: Sequence[ReadyQueue], needs: Sequence[int], makes: Sequence[int]) -> dict[int, int]:
    """Return, by the number of each training function, the bits of made columns that it reads, and that these were made of.

    Args:
        own: Functions of a partition, each after those that it reads from.
        needs: Bits of the inputs of each function.
        makes: Bits of the outputs of each function.
    """
    made = 0
    for queue in own:
        made |= makes[queue.number]
    found = {}
    for reader in own:
        if reader.plan.is_strict:
            bits = needs[reader.number]
            for queue in reversed(own):
                bits |= needs[queue.number] if makes[queue.number] & bits else 0
            found[reader.number] = bits & made
    return found


def _read(table: RowTable, queues: Iterable[ReadyQueue]) -> int:
    """Return the bits of what the training functions among some have learned from."""
    found = 0
    for queue in queues:
        found |= table._learned.get(queue.number, 0)
    return found


def _have(group: Group, found: Remaking) -> int:
    """Return the bits of the columns that all rows of a group have, and that are not void."""
    have = ~found.columns
    for row in group.rows:
        have &= row.have
    return have


def go_without(table: RowTable, group: Group, lost: int) -> None:
    """Have functions go without a group that have yet to use it, and need columns that are lost.

    A training function takes the group in its turn, since its calls are of the groups of whole steps, and does not get
    its rows.

    Args:
        table: Table that has the group.
        group: Group that a training function has used.
        lost: Bits of the columns that are lost.
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
