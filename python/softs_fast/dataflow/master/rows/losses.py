"""What becomes of a group of rows of which columns are lost: functions run again, or others go without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .queue import ReadyQueue
from .records import Group

if TYPE_CHECKING:
    from .table import RowTable

__all__ = ["go_without", "learned_from", "make_again", "regain"]


@dataclass(frozen=True)
class _Remaking:
    """What has to be made again of a group.

    Attributes:
        again: functions that were through with it and run again.
        columns: bits of the columns that they make, and of all that was made from those: they are void.
        stale: bits of the functions that work on inputs which are void, and make columns: what they make is void, too.
    """

    again: tuple[ReadyQueue, ...]
    columns: int
    stale: int


def _remaking(group: Group, queues: Sequence[ReadyQueue], given_back: ReadyQueue | None = None) -> _Remaking:
    """Return what has to be made again, so that each function that has yet to use the group can get its inputs.

    A function runs again only if one that has yet to run needs what it makes; what all have used is not made again. A
    function may make other values the second time, so all that was made from the first ones is void: the columns of a
    group that a function reads belong together. Training functions never run again.

    Args:
        group: Group with the columns that it has now.
        queues: Queues of the functions of its partition, each after those that it reads from.
        given_back: Function of which a call was given back, after its main part perhaps: what was made of its
            outputs is void, too.

    Source: lineage, Zaharia et al., Resilient Distributed Datasets, NSDI 2012; columns that are void are own.
    """
    have = group.have
    again: list[ReadyQueue] = []
    found = [] if given_back is None else [given_back]
    void, stale = 0, group.stale
    while True:
        for queue in queues if found else ():
            if queue.makes and not queue.plan.is_strict and (queue in found or queue.needs & void):
                void |= queue.makes
                if group.taken & queue.bit:
                    stale |= queue.bit
        have &= ~void
        unfinished = ~(group.taken | group.done | group.without) | stale | sum(queue.bit for queue in again)
        need = 0
        for queue in queues:
            if unfinished & queue.bit:
                need |= queue.needs
        found = [
            queue
            for queue in queues
            if not (unfinished | group.without) & queue.bit
            and group.done & queue.bit
            and not queue.plan.is_strict
            and queue.makes & need & ~have
        ]
        if not found:
            return _Remaking(tuple(again), void, stale & ~group.stale)
        again += found


def make_again(table: RowTable, group: Group, given_back: ReadyQueue | None = None) -> None:
    """Have functions run again for which a function that has yet to run waits.

    What a training function has used is never made again: another one would learn from another sample than it did. So
    functions that have yet to use the group go without it. While a training call is open that may have read the columns,
    or not, nothing begins on the group.

    Args:
        table: Table that has the group.
        group: Group with the columns that it has now.
        given_back: Function of which a call was given back, see `_remaking`.
    """
    own = table._own[group.partition]
    found = _remaking(group, own, given_back)
    used = [one for one in own if group.done & one.bit or (group.uses or {}).get(one.number)]
    lost = _read(table, used) & ~(group.have & ~found.columns)
    if lost:
        go_without(table, group, lost)
        if group.index not in table._groups[group.partition]:
            return
        found = _remaking(group, own, given_back)
    was_held = group.is_held
    group.is_held = bool(
        _read(table, [one for one in own if group.taken & one.bit]) & ~(group.have & ~found.columns)
    )
    if found.columns:
        group.is_hit = True
        table.n_disturbed += 1
        table._unmake(group, found.columns)
    if group.is_held:
        group.is_hit = True
        for queue in own:
            queue.discard(group)
        return
    table.n_made_again += len(group.ids) if found.again else 0
    group.stale |= found.stale
    for queue in found.again:
        group.done &= ~queue.bit
        group.again |= queue.bit
        table._n_through[queue.number] -= 1
    for queue in own if was_held else found.again:
        table._offer(group, queue)


def learned_from(own: Sequence[ReadyQueue]) -> dict[int, int]:
    """Return, by the number of each training function, the bits of made columns that it reads, and that these were made of.

    Args:
        own: Functions of a partition, each after those that it reads from.
    """
    made = 0
    for queue in own:
        made |= queue.makes
    found = {}
    for reader in own:
        if reader.plan.is_strict:
            bits = reader.needs
            for queue in reversed(own):
                bits |= queue.needs if queue.makes & bits else 0
            found[reader.number] = bits & made
    return found


def _read(table: RowTable, queues: Iterable[ReadyQueue]) -> int:
    """Return the bits of what the training functions among some have learned from."""
    found = 0
    for queue in queues:
        found |= table._learned.get(queue.number, 0)
    return found


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
    table._unmake(group, lost)
    for queue in table._own[group.partition]:
        if (group.taken | group.done) & queue.bit or not queue.needs & lost:
            continue
        lost |= queue.makes
        if group.without & queue.bit:
            continue
        group.without |= queue.bit
        table.n_left_out += len(group.ids)
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
            table.n_left_out -= len(group.ids)
            group.without &= ~queue.bit
            queue.discard(group)
            if not queue.plan.is_strict:
                group.done &= ~queue.bit
                table._n_through[queue.number] -= 1
                table._n_begun[queue.number] -= 1
                group.places[queue.number] = -1
