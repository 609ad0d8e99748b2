"""What a run does and what it waits for, in words and numbers."""

from __future__ import annotations

from ..wire.messages import MemberStatus, Status
from .members import titles
from .policies import Barrier, Policy
from .state import State

__all__ = ["status_of"]


def status_of(state: State, policy: Policy, now_s: float) -> Status:
    """Return the status of a run, without what its server alone knows: uploads, evaluations, lines of the log."""
    is_paused = state.pause_reason is not None
    for_s = now_s - (state.paused_at_s if is_paused else state.since_s)
    return Status(
        serial=0,
        state="paused" if is_paused else state.phase,
        timeline=state.timeline,
        version=state.number,
        rounds=state.options.rounds,
        world_size=state.options.world_size,
        have=len(state.pending),
        need=policy.need(),
        waiting_for=f"{_text(state, policy)}, for {for_s:.0f} s" if state.over is None else state.over[0],
        samples=state.samples,
        skipped=state.skipped,
        refused=state.refused,
        is_failure=state.over is not None and state.over[1],
        members=tuple(
            MemberStatus(
                *(one.worker_id, one.name, one.rank, one.state, one.pushes, one.refused),
                silent_s=now_s - one.seen_s,
                loss=one.loss,
            )
            for one in sorted(state.members, key=lambda one: one.rank)
            if one.state != "gone"
        ),
        loss=state.loss,
    )


def _text(state: State, policy: Policy) -> str:
    if state.pause_reason is not None:
        return f"paused: {state.pause_reason}"
    if state.phase == "apply":
        return f"the optimizer makes version {state.number + 1} of {len(state.applying)} pushes"
    stalled = [one for one in state.members if one.state == "stalled"]
    return _waits_for(state, policy) + (f"; no progress of {titles(stalled)}" if stalled else "")


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
        return f"{have}, a quorum; waits a little longer for {titles(missing)}"
    return f"{have}; waits for {titles(missing)}" if missing else f"{have}; waits for more workers"
