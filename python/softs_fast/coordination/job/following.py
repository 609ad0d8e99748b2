"""Which workers copy the state of an open epoch while its members make steps, and when they have it."""

from __future__ import annotations

import math
from collections.abc import Collection

from .forming import choose
from .messages import Follow, Followed, Member, Table, Unfollowed
from .rolling import Resume
from .seats import Worker
from .state import Following, State

__all__ = [
    "awaited",
    "drop_copy_of",
    "ends_at",
    "followers",
    "is_late",
    "may_admit",
    "note",
    "note_lost",
    "ranks_of_followers",
]


def may_admit(state: State, newcomers: Collection[int]) -> bool:
    """Return whether the epoch may end to admit newcomers; if not, have them copy its state first.

    It may end once the followers are at most one step behind, or have been behind for long, or if the newcomers cannot
    follow.

    Args:
        state: State of the job; its epoch is open.
        newcomers: Seats that the next epoch would have more.
    """
    following = state.following
    if following is not None and following.has_failed:
        return True
    workers = [state.seats.by_number[seat] for seat in sorted(newcomers)]
    present = list(state.connected_members())
    if not present:
        # After a restart of the coordinator, a worker may be there before them.
        return False
    sources = [one for one in present if not one.is_leaving]
    # All members compare the weights of followers.
    if not sources or not all(worker.can_follow for worker in (*present, *workers)):
        return True
    seats = {worker.number for worker in followers(state)}
    members = set(state.members)
    # Without one of them, the others cannot go on.
    is_whole = following is not None and len(seats) == len(following.follow.table.members) - 1
    if not is_whole or len(choose(state.options, members | seats, members)) <= len(members):
        _begin(state, sources[-1], workers)
        return False
    if following is not None and state.now_s >= ends_at(state):
        # Followers without the state copy it with all others.
        following.has_failed = following.complete_s is None
        return True
    return following is not None and seats <= following.close


def ends_at(state: State) -> float:
    """Return when the epoch ends for its followers though they are not close: they may never catch up, or get no state.

    A source copies between two steps, and members may wait in one for samples.
    """
    following = state.following
    if following is None or following.has_failed or state.fence is not None:
        return math.inf
    since_s = max(following.since_s, state.progress.top_since_s)
    return (since_s if following.complete_s is None else following.complete_s) + state.options.form_timeout_s


def _begin(state: State, source: Worker, workers: list[Worker]) -> None:
    assert state.table is not None
    told = sorted([source, *workers], key=lambda one: one.number)
    members = tuple(
        Member(rank, one.number, one.id, one.incarnation, one.address) for rank, one in enumerate(told)
    )
    rank = told.index(source)
    table = Table(state.table.boot, state.epoch, members, 0, "back", (rank,), rank)
    state.n_follows += 1
    # The same copies may be begun by a coordinator that takes over: workers know the new ones by their numbers.
    number = (state.boot % (1 << 31) << 32) + state.n_follows
    state.following = Following(Follow(table, number), state.now_s)
    names = ", ".join(worker.name for worker in workers)
    state.log(
        f"the state of {state.name_of(source)} is copied while epoch {state.epoch} goes on, for {names}"
    )
    for worker in workers:
        # Once it is overwritten, nothing tells.
        state.warn_if_foreign(worker)
    for worker in told:
        state.tell(worker, state.following.follow)


def followers(state: State) -> list[Worker]:
    """Return the workers that copy the state of the epoch, without those that were lost, by seat."""
    if state.following is None or state.following.has_failed:
        return []
    found = ((one, state.seats.by_number.get(one.seat)) for one in state.following.follow.table.members)
    return [
        worker
        for member, worker in found
        if worker is not None
        and worker.ready is not None
        and worker.is_process(member)
        and not state.is_member(worker)
    ]


def drop_copy_of(state: State, worker: Worker) -> None:
    """Drop the copy of a worker that is connected anew: what was said of it last may be lost."""
    if state.following is not None and _takes_part(worker, state.following.follow.table):
        _drop(state, state.following)


def _drop(state: State, following: Following) -> None:
    """Have a copy begin anew, once in an epoch: then members wait for another one, or a worker might never join."""
    following.has_failed = state.has_copied_again
    if not state.has_copied_again:
        state.following, state.has_copied_again = None, True


def _takes_part(worker: Worker, table: Table) -> bool:
    return any(one.seat == worker.seat and worker.is_process(one) for one in table.members)


def note_lost(state: State, worker: Worker) -> None:
    """Have the seat of a worker that is lost while it follows cool down: each copy costs the source."""
    if worker in followers(state):
        state.cooldown.enter(state.now_s, worker.number)


def note(state: State, worker: Worker, message: Followed | Unfollowed) -> None:
    """Note how far a follower is, or that a copy has failed; messages about an earlier copy change nothing."""
    following = state.following
    if following is None or (message.epoch, message.number) != (state.epoch, following.follow.number):
        return
    if following.has_failed or not _takes_part(worker, following.follow.table):
        return
    if isinstance(message, Unfollowed):
        # A source gives up on a follower that is stopped, and members that waited for it would stand still. Another copy
        # waits in their place: nothing of it is sent until all followers are there.
        if state.is_member(worker):
            _drop(state, following)
        else:
            following.has_failed = True
        state.log(
            f"{worker.name} cannot copy, or serve, the state while the members go on: {message.text}",
            is_warning=True,
        )
    elif worker.ready is not None:
        following.steps[worker.number] = message.step
        if following.complete_s is None and following.steps.keys() >= {
            one.number for one in followers(state)
        }:
            following.complete_s = state.now_s
        if message.backlog <= 1:
            following.close.add(worker.number)


def awaited(state: State, present: Collection[int]) -> set[int]:
    """Return the seats of followers for which the next table waits: they have the state, and not yet the last step of the epoch.

    Args:
        state: State of the job; its epoch is over.
        present: Seats of its followers.
    """
    following, fence = state.following, state.fence
    if following is None or fence is None or not fence.planned or not present:
        return set()
    table = following.follow.table
    source = state.seats.by_number.get(table.members[table.source_rank or 0].seat)
    if source is None or source.conn is None or state.now_s >= state.since_s + state.options.form_timeout_s:
        # Nothing may come any more: they copy the whole state.
        return set()
    ready = (one.ready for one in state.connected_members() if one.ready is not None)
    last = max((one.committed for one in ready if (one.boot, one.epoch) == state.epoch_id), default=0)
    return {seat for seat in present if following.steps.get(seat, last) < last}


def is_late(state: State, worker: Worker, present: Collection[int]) -> bool:
    """Return whether a worker came after others had begun to copy: it follows the next epoch."""
    return (
        state.fence is not None
        and state.fence.cause == "joined"
        and worker.can_follow
        and not state.is_member(worker)
        and bool(present)
        and worker.number not in present
    )


def ranks_of_followers(state: State, workers: list[Worker], way: Resume) -> tuple[int, ...]:
    """Return the ranks that have followed to the step of a new epoch: all that lack its state, or none.

    Args:
        state: State of the job; the epoch before is its last one.
        workers: Members of the new epoch, by rank.
        way: How they come to the same weights.
    """
    source = None if way.source is None else workers[way.source].ready
    if source is None or (source.boot, source.epoch) != state.epoch_id or state.following is None:
        return ()
    steps, present = state.following.steps, followers(state)
    lacking = tuple(rank for rank in range(len(workers)) if rank not in way.survivors)
    have = all(worker.can_follow for worker in workers) and all(
        workers[rank] in present and steps.get(workers[rank].number) == way.step for rank in lacking
    )
    return lacking if have else ()
