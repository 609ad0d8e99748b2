"""The step at which an epoch goes on, and from where workers that have another one copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...records import replace
from .messages import Roll, Table, WorkerState


@dataclass(frozen=True)
class Resume:
    """How the members of a new epoch come to the same weights.

    Attributes:
        step: Step at which all members resume.
        roll: Whether members that are in doubt of `step` apply it.
        survivors: Members that have the weights of `step`, perhaps after the roll.
        source: Member from which all others copy; None: they load the checkpoint.
    """

    step: int
    roll: Roll
    survivors: tuple[int, ...]
    source: int | None


def resume(
    states: Mapping[int, WorkerState],
    last: tuple[int, int] | None,
    checkpoint_step: int,
    own: Collection[int],
) -> Resume:
    """Return how members go on.

    A step is: reduce, barrier, apply. A worker in doubt has reduced, and does not know whether all have. If a member of
    the last epoch has committed step k + 1, each had reached its barrier, so each is in doubt or has committed it. If a
    survivor is neither, no member has committed it, dead or alive, and it is dropped.

    Args:
        states: State of each member of the new epoch, by rank.
        last: Boot and number of the epoch before, as far as the coordinator knows; None if it knows of none.
        checkpoint_step: Step of the last complete checkpoint; 0 without one.
        own: Boots under which epochs of this training were opened. A worker of another training counts only if no
            worker was in an epoch of this one: numbers of epochs say nothing about other trainings.
    """
    by_epoch: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(states):
        if states[rank].epoch:
            by_epoch.setdefault((states[rank].boot, states[rank].epoch), []).append(rank)
    n_of_boot = Counter(state.boot for state in states.values())
    # Numbers of epochs grow over all coordinators of a training; where they do not, the own one is later.
    newest = max(
        by_epoch,
        key=lambda one: (
            one[0] in own,
            0 if one[0] in own else n_of_boot[one[0]],
            one[1],
            one == last,
            max(states[rank].committed for rank in by_epoch[one]),
        ),
        default=None,
    )
    if newest is None:
        return _begin(states, checkpoint_step)
    ranks = by_epoch[newest]
    if newest != last and max(states[rank].committed for rank in ranks) < checkpoint_step:
        # The epoch before has no survivor. Steps of another training do not compare with those of this one.
        if newest[0] in own:
            states = {rank: one for rank, one in states.items() if not one.epoch or one.boot in own}
        return _begin(states, checkpoint_step)
    committed = max(states[rank].committed for rank in ranks)
    step = max(committed, min(states[rank].reach for rank in ranks))
    survivors = tuple(rank for rank in ranks if states[rank].committed <= step <= states[rank].reach)
    is_forward = any(states[rank].committed < step for rank in survivors)
    return Resume(step, "forward" if is_forward else "back", survivors, survivors[0])


def _begin(states: Mapping[int, WorkerState], checkpoint_step: int) -> Resume:
    """Return how workers begin of which none was in an epoch that counts."""
    able = [rank for rank in sorted(states) if not states[rank].is_lost] or sorted(states)
    newest = max(states[rank].committed for rank in able)
    if checkpoint_step > newest:
        return Resume(checkpoint_step, "back", (), None)
    survivors = tuple(rank for rank in able if states[rank].committed == newest)
    return Resume(newest, "back", survivors[:1], survivors[0])


def copying(table: Table) -> tuple[int, ...]:
    """Return the ranks that take part in the copy of the state: the source, and those that lack it; none without one."""
    if table.source_rank is None:
        return ()
    lacking = {one.rank for one in table.members} - set(table.survivors)
    return tuple(sorted(lacking | {table.source_rank})) if lacking else ()


def part_of(table: Table, ranks: Sequence[int]) -> Table:
    """Return the table of some members of an epoch, for an engine of their own; their ranks begin with 0.

    Args:
        table: Table of the epoch.
        ranks: Ranks of these members in it, in their order; the source is one of them, if there is one.
    """
    return replace(
        table,
        members=tuple(replace(table.members[rank], rank=number) for number, rank in enumerate(ranks)),
        survivors=tuple(number for number, rank in enumerate(ranks) if rank in table.survivors),
        source_rank=None if table.source_rank is None else ranks.index(table.source_rank),
        followers=(),
    )
