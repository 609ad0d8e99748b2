"""Which functions run again, when columns of a group have lost their last holder. Decisions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .queue import ReadyQueue
from .records import Group

__all__ = ["Remaking", "remaking"]


@dataclass(frozen=True)
class Remaking:
    """What has to be made again of a group.

    Attributes:
        again: functions that were through with it and run again.
        columns: bits of the columns that they make, and of all that was made from those: they are void.
        stale: bits of the functions that work on inputs which are void, and make columns: what they make is void, too.
    """

    again: tuple[ReadyQueue, ...]
    columns: int
    stale: int


def remaking(
    group: Group,
    queues: Sequence[ReadyQueue],
    needs: Sequence[int],
    makes: Sequence[int],
    given_back: ReadyQueue | None = None,
) -> Remaking:
    """Return what has to be made again, so that each function that has yet to use the group can get its inputs.

    A function runs again only if one that has yet to run needs what it makes; what all have used is not made again. A
    function may make other values the second time, so all that was made from the first ones is void: the columns of a
    group that a function reads belong together. Training functions never run again.

    Args:
        group: Group with the columns that its rows have now.
        queues: Queues of the functions of its partition, each after those that it reads from.
        needs: Bits of the inputs of each function.
        makes: Bits of the outputs of each function.
        given_back: Function of which a call was given back, after its main part perhaps: what was made of its
            outputs is void, too.

    Source: lineage, Zaharia et al., Resilient Distributed Datasets, NSDI 2012; columns that are void are own.
    """
    have = -1
    for row in group.rows:
        have &= row.have
    again: list[ReadyQueue] = []
    found = [] if given_back is None else [given_back]
    void, stale = 0, group.stale
    while True:
        for queue in queues if found else ():
            made = makes[queue.number]
            if made and not queue.plan.is_strict and (queue in found or needs[queue.number] & void):
                void |= made
                if group.taken & queue.bit:
                    stale |= queue.bit
        have &= ~void
        unfinished = ~(group.taken | group.done | group.without) | stale | sum(queue.bit for queue in again)
        need = 0
        for queue in queues:
            if unfinished & queue.bit:
                need |= needs[queue.number]
        found = [
            queue
            for queue in queues
            if not (unfinished | group.without) & queue.bit
            and group.done & queue.bit
            and not queue.plan.is_strict
            and makes[queue.number] & need & ~have
        ]
        if not found:
            return Remaking(tuple(again), void, stale & ~group.stale)
        again += found
