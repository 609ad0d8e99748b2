"""What a job is doing, and what it waits for, in words."""

from __future__ import annotations

from typing import Annotated

from ...records import U32, Amount, Count, Record, Tag64, most
from .epochs import why_waiting
from .events import Completed
from .following import followers
from .messages import Address, Cause, Fence, Reason, Saved, Text, WorkerId
from .options import MAX_SEATS
from .seats import Worker
from .state import Phase, State


class SeatStatus(Record):
    """A worker with a seat, or a spare.

    Attributes:
        seat: Number of the seat; None for a spare.
        worker_id: Name of the worker.
        address: Address at which others reach it.
        text: Activity of the worker, as text for the user.
        step: Last step that it has begun in this epoch; 0 if none.
        starvation: Share of the last seconds in which it has waited for live samples, 0 to 1.
    """

    seat: U32 | None
    worker_id: WorkerId
    address: Address
    text: Reason
    step: Count
    starvation: Amount = 0.0


class FenceCount(Record):
    """How many fences had a cause."""

    cause: Cause
    number: Count


class Status(Record):
    """A job.

    Attributes:
        name: Name of the job.
        phase: Phase of the job.
        reason: Reason for the phase, or what the job waits for, as text for the user.
        since_s: Time that the job has been in this phase, seconds.
        boot: Boot that names the last epoch together with its number.
        epoch: Number of the last epoch; 0 before the first one.
        size: Number of members; 0 if no epoch is open.
        seats: Workers by seat, then the spares.
        spread: Steps between the first and the last member.
        fences: Last fences, the newest last.
        n_fences: Number of all fences so far, by cause.
        table_s: Latest time from the end of an epoch to the next table, seconds.
        checkpoint: Last complete checkpoint.
        samples_per_s: Live samples that all members have trained in each of the last seconds.
        starvation: Share of these seconds in which steps have waited for samples, that of the member that has waited
            longest, 0 to 1.
        saved: Last checkpoint that one worker has written for all, that of a `Job`.
    """

    name: Text
    phase: Phase
    reason: Reason
    since_s: Amount
    boot: Tag64
    epoch: Count
    size: U32
    seats: Annotated[tuple[SeatStatus, ...], most(2 * MAX_SEATS)]
    spread: Count
    fences: Annotated[tuple[Fence, ...], most(64)]
    n_fences: Annotated[tuple[FenceCount, ...], most(64)]
    table_s: Amount
    checkpoint: Completed | None
    samples_per_s: Amount = 0.0
    starvation: Amount = 0.0
    saved: Saved | None = None


def status_of(state: State, now_s: float) -> Status:
    """Return what a job does."""
    return Status(
        state.options.name,
        state.phase,
        _reason(state, now_s),
        max(0.0, now_s - state.since_s),
        state.boot if state.table is None else state.table.boot,
        state.epoch,
        len(state.members) if state.phase == "open" else 0,
        tuple(
            SeatStatus(
                one.seat,
                one.id,
                one.address,
                _doing(state, one, now_s),
                state.progress.steps.get(one.number, 0),
                state.rates.starvation(one.number),
            )
            for one in (*state.seats, *state.seats.spares())
        ),
        state.progress.spread,
        tuple(state.fences),
        tuple(FenceCount(cause, number) for cause, number in sorted(state.n_fences.items())),
        state.table_s,
        state.checkpoints.last,
        state.rates.samples_per_s,
        max(map(state.rates.starvation, state.rates.windows), default=0.0),
        state.rates.saved(now_s),
    )


def _reason(state: State, now_s: float) -> str:
    if state.phase == "open":
        return _waits(state, now_s) if state.fence is None else state.fence.text
    if state.phase == "fenced" and state.fence is not None:
        return f"{why_waiting(state)}; epoch {state.epoch} is over: {state.fence.text}"
    return why_waiting(state) if state.phase == "forming" else state.reason


def _waits(state: State, now_s: float) -> str:
    """Return the step of an open epoch, and for which members the others wait: they end each step together."""
    step = f"in step {state.progress.top}"
    waiting = [one for one in state.connected_members() if state.rates.lacks_s(now_s, one.number)]
    if not waiting:
        return step
    if len(waiting) == len(state.members):
        return f"{step}; all members wait for samples"
    names = ", ".join(one.name for one in waiting)
    return (
        f"{step}; the others wait for {names}: {'it waits' if len(waiting) == 1 else 'they wait'} for samples"
    )


def _doing(state: State, worker: Worker, now_s: float) -> str:
    if worker.conn is None:
        return f"away for {max(0.0, now_s - worker.away_since_s):.1f} s"
    if worker.is_leaving:
        return "leaving"
    if worker.seat is None:
        return "spare"
    if worker in followers(state):
        assert state.following is not None
        step = state.following.steps.get(worker.number)
        return "copies the state" if step is None else f"follows, at step {step}"
    if worker.ready is not None:
        left_s = state.cooldown.left_s(now_s, worker.number)
        cooling = (
            f", in cool-down for {left_s:.0f} s" if left_s and worker.number not in state.members else ""
        )
        return f"ready, at step {worker.ready.committed}{cooling}"
    if state.phase != "open" or not state.is_member(worker):
        return "not ready"
    lacks_s = state.rates.lacks_s(now_s, worker.number)
    return f"member, waits for samples for {lacks_s:.0f} s" if lacks_s else "member"
