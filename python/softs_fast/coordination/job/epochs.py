"""The life of an epoch: when it ends, and when the next one is opened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from . import following
from .events import Agreed, Booted, Completed, Ended, Persist
from .forming import SeatView, Waiting, choose, form
from .messages import Alarm, Cause, Fence, Member, Refused, Table, Welcome, WorkerState
from .rolling import resume
from .seats import Worker
from .state import Phase, State

# Numbers of epochs that workers of other coordinators claim count up to here: enough are left to count on.
_MOST_CLAIMED = 1 << 52

# --- Ends ---


def plan_end(state: State, cause: Cause, seat: int | None, text: str) -> None:
    """Have the members end the epoch after the step in which they are."""
    if state.phase != "open" or state.fence is not None or state.table is None:
        return
    state.fence = Fence(state.table.boot, state.epoch, cause, seat, text, planned=True)
    state.fence_since_s = state.now_s
    state.log(f"epoch {state.epoch} ends after this step: {text}")
    for worker in state.connected_members():
        state.tell(worker, state.fence)


def end(state: State, cause: Cause, seat: int | None, text: str) -> None:
    """End the epoch at once, if it is open: the first cause is kept."""
    if state.phase != "open" or state.table is None:
        return
    fence = Fence(state.table.boot, state.epoch, cause, seat, text)
    state.log(f"epoch {state.epoch} is over: {text}", is_warning=True)
    for worker in state.connected_members():
        state.tell(worker, fence)
    _close(state, fence)


def finish(state: State, phase: Phase, reason: str) -> None:
    """End the job, for all."""
    if state.is_over:
        return
    if phase == "ended":
        state.outputs.append(Persist(Ended(reason)))
    end(state, "ended" if phase == "ended" else "failed", None, reason)
    state.log(f"the job has {phase}: {reason}", is_warning=phase == "failed")
    for worker in list(state.seats.by_id.values()):
        if worker.conn is not None:
            state.refuse(worker.conn, Refused("ended", f"the job has {phase}: {reason}"))
        state.seats.remove(worker)
    for conn in state.newcomers:
        state.refuse(conn, Refused("ended", f"the job has {phase}: {reason}"))
    state.newcomers.clear()
    state.phase, state.reason, state.since_s = phase, reason, state.now_s


def _close(state: State, fence: Fence) -> None:
    state.fence = fence
    state.fences.append(fence)
    state.n_fences[fence.cause] += 1
    state.phase, state.since_s = "fenced", state.now_s
    for step, path in state.checkpoints.abort():
        state.log(f"checkpoint of step {step} is dropped, its epoch is over: {path}", is_warning=True)


# --- What time does ---


def advance(state: State) -> list[Worker]:
    """Do all that is due now; return workers that stand still and are to be evicted."""
    if state.is_over:
        return []
    _end_of_missing(state)
    stalled = _name_stalled(state)
    _end_planned(state)
    if state.is_over:
        return []
    _release_leaving(state)
    # Members keep their seats until their epoch is over.
    if state.phase != "open" or state.options.n_seats > state.seats.n_seats:
        state.seats.resize(state.options.n_seats)
    _promote_spares(state)
    if state.phase != "open":
        _form(state)
    if state.phase == "open":
        _grow(state)
    return stalled


def deadlines(state: State) -> Iterator[float]:
    """Iterate over the times at which `advance` may have to do something; some may be past."""
    options = state.options
    yield from (newcomer.until_s for newcomer in state.newcomers.values())
    for worker in () if state.seats.are_connected else state.seats:
        if worker.conn is None:
            yield worker.back_until_s
            yield max(worker.away_since_s + options.kept_s, worker.back_until_s)
    yield from state.cooldown.until_s.values()
    if state.phase == "open":
        if state.fence is not None:
            yield _planned_until(state)
        if state.joined_since_s is not None:
            yield state.joined_since_s + options.join_s
            yield following.ends_at(state)
    elif state.phase == "fenced":
        yield state.since_s + options.form_timeout_s
        yield state.since_s + options.rejoin_timeout_s
    elif state.phase == "forming" and state.enough_since_s is not None:
        yield state.enough_since_s + options.form_timeout_s
        yield state.enough_since_s + options.rejoin_timeout_s


def _end_of_missing(state: State) -> None:
    """End the epoch of a member that is away for too long."""
    if state.seats.are_connected:
        return
    for seat in sorted(state.members):
        worker = state.seats.by_number.get(seat)
        if worker is None or not state.is_member(worker):
            continue
        if worker.conn is None and state.now_s >= worker.back_until_s:
            end(state, "gone", seat, f"{state.name_of(worker)} is gone")


def _name_stalled(state: State) -> list[Worker]:
    if state.phase != "open":
        return []
    stalled = state.progress.name_stalled(state.now_s, state.options.stalled_after_s)
    workers = [state.seats.by_number[seat] for seat in stalled if seat in state.seats.by_number]
    if not workers:
        return []
    names = ", ".join(worker.name for worker in workers)
    text = f"no progress for {state.options.stalled_after_s:g} s, while others are in step {state.progress.top}: {names}"
    state.log(text, is_warning=True)
    for member in state.connected_members():
        state.tell(member, Alarm(tuple(stalled), text))
    return workers if state.options.evict_stalled else []


def _end_planned(state: State) -> None:
    """End an epoch of which all members have ended their last step, or one has not for too long."""
    fence = state.fence
    if state.phase != "open" or fence is None:
        return
    workers = [state.seats.by_number.get(seat) for seat in state.members]
    if all(worker is not None and worker.resting_since_s is not None for worker in workers):
        finish(state, "ended", "all members have left")
    elif all(
        worker is not None and state.is_member(worker) and worker.ready is not None for worker in workers
    ):
        _close(state, fence)
    elif state.now_s >= _planned_until(state):
        late = ", ".join(worker.name for worker in workers if worker is not None and worker.ready is None)
        text = f"{fence.text}; the step has not ended at {late}"
        end(state, fence.cause, fence.culprit_seat, text)


def _planned_until(state: State) -> float:
    """Return until when members may end their last step.

    For a blink after the first of them has ended it, unless one of them copies its gradients first, which takes longer
    for large ones; and as long as it takes to learn of the end of a step that is over for a member that will begin none.
    """
    ends = [worker.ready_since_s for worker in state.connected_members() if worker.ready is not None]
    rests = [
        worker.resting_since_s for worker in state.connected_members() if worker.resting_since_s is not None
    ]
    is_copied = state.following is not None and not state.following.has_failed
    return min(
        state.fence_since_s + state.options.form_timeout_s,
        math.inf if is_copied else min(ends, default=math.inf) + state.options.blink_s,
        min(rests, default=math.inf) + state.options.settle_s,
    )


def _release_leaving(state: State) -> None:
    """Remove workers that leave, and have no engine any more."""
    for worker in list(state.seats.by_id.values()):
        if not worker.is_leaving:
            continue
        if state.is_member(worker):
            if state.phase == "open" or (worker.conn is not None and worker.ready is None):
                continue
            state.left.add(worker.number)
        if worker.conn is not None:
            state.refuse(worker.conn, Refused("ended", f"{worker.name} has left the job"))
        state.seats.remove(worker)


def _promote_spares(state: State) -> None:
    for worker in state.seats.spares():
        seat = state.seats.choose(None, state.now_s, state.options.kept_s)
        if seat is None or not state.gate.take(state.options, seat, state.now_s):
            return
        state.seats.add(worker, seat)
        state.tell(worker, Welcome(state.boot, seat))


# --- Begins ---


def _grow(state: State) -> None:
    """End the epoch after this step if more workers could be members."""
    if all(worker.ready is None for worker in state.seats.by_number.values()):
        state.joined_since_s = state.following = None
        return
    members = set(state.members)
    ready = {
        worker.number
        for worker in state.seats
        if worker.ready is not None
        and not worker.is_leaving
        and not state.cooldown.left_s(state.now_s, worker.number)
    }
    if state.fence is not None:
        state.joined_since_s = None
        return
    chosen = set(choose(state.options, members | ready, members))
    if len(chosen) <= len(members):
        state.joined_since_s = state.following = None
        return
    if state.joined_since_s is None:
        state.joined_since_s = state.now_s
    is_due = len(chosen) == state.options.n_seats or (
        state.now_s >= state.joined_since_s + state.options.join_s
    )
    if not is_due:
        return
    text = f"{len(chosen) - len(members)} more workers are ready"
    if following.may_admit(state, chosen - members):
        plan_end(state, "joined", None, text)


def _form(state: State) -> None:
    if state.left and not state.seats.by_number:
        finish(state, "ended", "all members have left")
        return
    n_ready = sum(worker.ready is not None for worker in state.seats.by_number.values())
    # Most of the workers that come do not complete an epoch, so that much is seen without looking at each.
    result = _result(state) if state.options.largest(n_ready) else None
    if isinstance(result, tuple):
        _open(state, result)
        return
    has_enough = result is not None and result.has_enough
    if not has_enough:
        state.enough_since_s = None
    elif state.enough_since_s is None:
        state.enough_since_s = state.now_s
    rejoin_timeout_s = state.options.rejoin_timeout_s
    if state.table is not None and not has_enough and state.now_s >= state.since_s + rejoin_timeout_s:
        finish(state, "failed", f"too few workers for {rejoin_timeout_s:g} s: {why_waiting(state)}")


def why_waiting(state: State) -> str:
    """Return in words what the next table waits for."""
    result = _result(state)
    return result.reason if isinstance(result, Waiting) else "enough workers are ready"


def _result(state: State) -> tuple[int, ...] | Waiting:
    is_first = state.table is None
    since_s = state.enough_since_s if is_first else state.since_s
    is_over = since_s is not None and state.now_s >= since_s + state.options.form_timeout_s
    is_held = since_s is None or state.now_s < since_s + state.options.rejoin_timeout_s
    was_unused = _was_unused(state)
    present = {worker.number for worker in following.followers(state)}
    awaited = following.awaited(state, present)
    views = [
        _view(state, worker, is_held=is_held, was_unused=was_unused, is_awaited=worker.seat in awaited)
        for worker in state.seats
        if not worker.is_leaving
    ]
    return form(state.options, _without_waiting(state, views, present), is_first=is_first, is_over=is_over)


def _without_waiting(state: State, views: list[SeatView], present: set[int]) -> list[SeatView]:
    """Leave out seats that cool down, or have come late, unless there are too few without them.

    Never a worker that may have the weights.
    """
    others = [
        view
        for view in views
        if view.is_survivor
        or view.is_holder
        or not (
            state.cooldown.left_s(state.now_s, view.seat)
            or following.is_late(state, state.seats.by_number[view.seat], present)
        )
    ]
    ready = {view.seat for view in others if view.is_ready}
    survivors = {view.seat for view in others if view.is_survivor}
    return others if choose(state.options, ready, survivors) else views


def _open(state: State, seats: tuple[int, ...]) -> None:
    workers = [state.seats.by_number[seat] for seat in seats]
    checkpoint = state.checkpoints.last or Completed(0, 0, "")
    states = {rank: worker.ready for rank, worker in enumerate(workers) if worker.ready is not None}
    way = resume(states, state.epoch_id, checkpoint.step, state.boots)
    for rank in states:
        if rank not in way.survivors:
            state.warn_if_foreign(workers[rank])
    for boot in state.adopt(states[rank].boot for rank in way.survivors if states[rank].epoch):
        state.outputs.append(Persist(Booted(state.options.name, boot)))
    members = tuple(
        Member(rank, worker.number, worker.id, worker.incarnation, worker.address)
        for rank, worker in enumerate(workers)
    )
    table = Table(
        state.boot,
        1 + max([state.epoch, *(one.epoch for one in states.values() if one.epoch < _MOST_CLAIMED)]),
        members,
        way.step,
        way.roll,
        way.survivors,
        way.source,
        checkpoint.path,
        following.ranks_of_followers(state, workers, way),
    )
    if state.table is not None:
        state.table_s = state.now_s - state.since_s
    known = state.progress.top - 1
    if way.step < known:
        state.log(
            f"steps {way.step + 1} to {known} are lost: no worker has their weights any more, and no checkpoint",
            is_warning=True,
        )
    _note_entries(state, [worker for worker in workers if not state.is_member(worker)])
    if state.gate.contract is None:
        # Admission has let in no worker with another one.
        state.gate.contract = workers[0].contract
        assert state.gate.contract is not None, "a worker is ready that has said no Hello"
        state.outputs.append(Persist(Agreed(state.gate.contract)))
    state.enter(table)
    state.outputs.append(Persist(table))
    state.log(f"epoch {table.epoch} is open: {len(members)} members, step {way.step}, {_said(table, states)}")
    for worker in workers:
        worker.ready = None
        state.tell(worker, table)


def _note_entries(state: State, workers: list[Worker]) -> None:
    """Have seats cool down of which workers enter again and again."""
    for worker in workers:
        n = state.cooldown.enter(state.now_s, worker.number)
        if n > 2:
            state.log(
                f"{worker.name} enters an epoch for the {n}th time in short time; should it be lost, then others train "
                f"without it for {state.cooldown.left_s(state.now_s, worker.number):g} s from now on",
                is_warning=True,
            )


def _said(table: Table, states: Mapping[int, WorkerState]) -> str:
    """Return in words with which weights an epoch begins."""
    if table.source_rank is None:
        return f"all load checkpoint {table.checkpoint}"
    if not any(states[rank].epoch for rank in table.survivors):
        return f"a start, with the weights of rank {table.source_rank}"
    said = f"{len(table.survivors) + len(table.followers)} have its weights"
    if table.roll == "forward":
        return f"{said}, once they have applied what all had reduced"
    if any(states[rank].in_doubt and states[rank].reach > table.resume_step for rank in table.survivors):
        return f"{said}, step {table.resume_step + 1} is dropped and made again"
    return said


def _view(state: State, worker: Worker, *, is_held: bool, was_unused: bool, is_awaited: bool) -> SeatView:
    ready = worker.ready
    is_kept = not worker.is_missing(state.now_s, state.options.kept_s)
    was_in = worker.was_member if state.table is None else state.is_member(worker)
    is_survivor = ready is not None and _has_weights(state, ready, was_unused=was_unused)
    is_ready = ready is not None and not is_awaited
    return SeatView(
        worker.number,
        f"{worker.name}, which is {'away' if worker.conn is None else 'ready' if is_ready else 'not ready'}",
        is_ready,
        is_survivor,
        is_kept and (worker.number in state.members or is_awaited),
        is_held and is_kept and was_in and (ready is None or is_survivor),
    )


def _was_unused(state: State) -> bool:
    """Return whether no step of the last epoch was committed: a member has never had its engine."""
    return any(
        worker.ready is not None
        and state.is_member(worker)
        and not worker.ready.is_lost
        and (worker.ready.boot, worker.ready.epoch) != state.epoch_id
        for worker in state.seats
    )


def _has_weights(state: State, ready: WorkerState, *, was_unused: bool) -> bool:
    """Return whether a worker has the weights with which the training goes on."""
    table = state.table
    if table is None:
        return ready.epoch > 0
    if (ready.boot, ready.epoch) == state.epoch_id:
        return True
    is_own = not ready.is_lost and (not ready.epoch or ready.boot in state.boots)
    return was_unused and (table.source_rank is None or (is_own and ready.reach >= table.resume_step))
