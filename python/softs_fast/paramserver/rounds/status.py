"""What a run does and what it waits for, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .members import Member, PresentState
from .policies import Barrier, Policy
from .state import State

__all__ = ["Status", "WorkerStatus", "status_of"]

#: Names in a text, at most.
_MOST_NAMES = 5


@dataclass(frozen=True)
class WorkerStatus:
    """Status of a member.

    Attributes:
        worker_id: Id of the worker.
        name: Name of the worker, for people.
        rank: Rank of the worker.
        state: State of the worker.
        silent_s: Seconds since its last request.
        counted: Pushes that count.
        stale: Pushes that were refused.
        loss: Loss of its last push that counts.
    """

    worker_id: str
    name: str
    rank: int
    state: PresentState
    silent_s: float
    counted: int
    stale: int
    loss: float | None


@dataclass(frozen=True)
class Status:
    """Status of a run.

    Attributes:
        state: State of the run: waiting, open, grace, apply, paused or done.
        text: Description of what the run waits for.
        since_s: Seconds since this state began.
        timeline: Timeline of the weights.
        version: Version of the weights.
        rounds: Version at which the run ends.
        have: Pushes that count and are in no step.
        need: Pushes of the next step.
        loss: Loss of the last step.
        samples: Samples that steps have used.
        skipped: Steps that were not finite.
        refused: Pushes that did not count.
        members: Members that are not gone.
        is_failure: Whether the run has ended because something is broken.
    """

    state: Literal["waiting", "open", "grace", "apply", "paused", "done"]
    text: str
    since_s: float
    timeline: int
    version: int
    rounds: int
    have: int
    need: int
    loss: float | None
    samples: int
    skipped: int
    refused: int
    members: tuple[WorkerStatus, ...]
    is_failure: bool


def status_of(state: State, policy: Policy, now_s: float) -> Status:
    """Return the status of a run."""
    is_paused = state.pause_reason is not None
    return Status(
        state="paused" if is_paused else state.phase,
        text=_text(state, policy),
        since_s=now_s - (state.paused_at_s if is_paused else state.since_s),
        timeline=state.timeline,
        version=state.number,
        rounds=state.options.rounds,
        have=len(state.pending),
        need=policy.need(),
        loss=state.loss,
        samples=state.samples,
        skipped=state.skipped,
        refused=state.refused,
        members=tuple(
            WorkerStatus(
                one.worker_id,
                one.name,
                one.rank,
                one.state,
                now_s - one.seen_s,
                one.pushes,
                one.refused,
                one.loss,
            )
            for one in sorted(state.members, key=lambda one: one.rank)
            if one.state != "gone"
        ),
        is_failure=state.over is not None and state.over[1],
    )


def _text(state: State, policy: Policy) -> str:
    if state.over is not None:
        return state.over[0]
    if state.pause_reason is not None:
        return f"paused: {state.pause_reason}"
    if state.phase == "apply":
        return f"the optimizer makes version {state.number + 1} of {len(state.applying)} pushes"
    stalled = [one for one in state.members if one.state == "stalled"]
    return _waits_for(state, policy) + (f"; no progress of {_names(stalled)}" if stalled else "")


def _waits_for(state: State, policy: Policy) -> str:
    n_active = len(state.members.active())
    if state.phase == "waiting":
        need = (
            state.options.needed if state.has_opened or state.is_told_to_start else state.options.world_size
        )
        return f"waits for workers: {n_active} of {need} are here"
    if not isinstance(policy, Barrier):
        return f"waits for pushes: {len(state.pending)} of {policy.need()} are here, {n_active} workers are active"
    missing = policy.missing()
    have = f"{len(state.pending)} of {policy.need()} pushes are here"
    if state.phase == "grace":
        return f"{have}, a quorum; waits a little longer for {_names(missing)}"
    return f"{have}; waits for {_names(missing)}" if missing else f"{have}; waits for more workers"


def _names(members: list[Member]) -> str:
    more = f" and {len(members) - _MOST_NAMES} more" if len(members) > _MOST_NAMES else ""
    return ", ".join(one.title for one in members[:_MOST_NAMES]) + more
