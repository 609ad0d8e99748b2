"""The machine of a run: WAITING -> OPEN -> (GRACE) -> APPLY -> OPEN -> ... -> DONE."""

from __future__ import annotations

import math

from ..wire.answers import Code
from ..wire.messages import Status
from . import events
from .events import Action, Event, Version
from .leases import Leases
from .members import Member, Members, titles
from .options import MAX_TEXT, RunOptions
from .policies import policy_of
from .snapshot import Snapshot
from .state import Contribution, State
from .status import status_of

__all__ = ["Run"]

#: A machine that is run so much later than it asked for could not see any request in that time. It is also run so long
#: before a lease ends: after a shorter pause, requests that have come meanwhile are read before that end.
_LATE_S = 1.0


class Run:
    """The machine of a parameter server. Same events, same actions: it has no clock and no random numbers.

    Args:
        options: Options of the run.
        now_s: Present time in seconds, on the clock of all later calls.
        snapshot: Snapshot of the server before this one; this one begins the next timeline. Its own `snapshot` must
            be in the file before the first event: else a third server would begin the same timeline.

    Invariants, which tests/paramserver checks in thousands of histories:
        P1: a push is applied at most once, and only if it was counted; the same one again changes nothing.
        P2: the first complete push of a worker for a version counts, or it is refused with a reason.
        P3: versions of a timeline are 1, 2, 3, ...; each is one step; a push of another timeline changes nothing.
        P4: the same pushes make the same step, in whatever order they arrive (`bsp`).
        P5: no member that is silent holds up a run for longer than its lease; none that makes no progress for longer than
            ten times the longest recent push (`pace`). Only a quorum of the world waits for the next worker then.
        P6: each position of an epoch is in one committed push, or still to do (`leases`).
        P7: a worker of `ssp` reads weights with all pushes that are more than `max_lead` clocks older than its own.
        P8: nothing grows without bound.
        P9: a run waits only for what its status names: members that are active, or that are still to join.

    Source: own, see docs/paramserver.md.
    """

    def __init__(self, options: RunOptions, now_s: float, snapshot: Snapshot | None = None) -> None:
        self._state = State(
            options,
            1 if snapshot is None else snapshot.timeline + 1,
            Members(options.max_workers, options.lost_after_s),
            Leases(options.dataset_size, options.epochs, None if snapshot is None else snapshot.leases),
            now_s,
            since_s=now_s,
        )
        self._policy = policy_of(self._state)
        self._promised_s = math.inf
        if snapshot is not None:
            self._state.restore(snapshot)
        if self._state.number >= options.rounds:
            self._end(f"all {options.rounds} rounds are done", is_failure=False)

    def handle(self, now_s: float, event: Event) -> list[Action]:
        """Take an event; return what is to be done, in this order. The first action is the answer to a worker."""
        state = self._state
        if now_s > self._promised_s + _LATE_S:
            state.members.excuse(now_s)
        state.now_s = max(state.now_s, now_s)
        state.actions = []
        for member in state.members.silent(state.now_s):
            self._remove(member, f"it was silent for {state.options.lost_after_s:g} s", can_return=True)
        for member in state.members.hung(state.now_s):
            self._stall(member)
        before = (state.phase, state.number, state.pause_reason is None)
        answer = self._take(event)
        if answer is not None:
            # In front of what has been noted so far.
            state.actions.insert(0, answer)
        self._advance()
        if before != (state.phase, state.number, state.pause_reason is None):
            state.actions.append(events.Changed())
        wake_s = self.next_wake_s()
        self._promised_s = math.inf if wake_s is None else wake_s
        return state.actions

    def next_wake_s(self) -> float | None:
        """Return when `handle` wants a Tick, if nothing happens before."""
        state = self._state
        if state.phase == "done":
            return None
        end_s = state.members.next_end_s()
        look_s = None if end_s is None or end_s <= state.now_s + _LATE_S else end_s - _LATE_S
        times = [end_s if look_s is None else look_s]
        if state.pause_reason is None and state.phase in ("open", "grace"):
            close_s = self._policy.close_s()
            times.append(None if close_s is None else close_s + state.paused_s)
        return min((one for one in times if one is not None), default=None)

    def snapshot(self) -> Snapshot:
        """Return what a server after this one has to know, if it has the weights of this moment."""
        return self._state.snapshot()

    def status(self, now_s: float) -> Status:
        """Return what the run does, and what it waits for."""
        return status_of(self._state, self._policy, max(now_s, self._state.now_s))

    @property
    def version(self) -> Version:
        """The last committed weights."""
        return self._state.version

    def knows(self, worker_id: str) -> bool:
        """Return whether an id is of a member, or of one that is gone and may ask again."""
        return self._state.members.find(worker_id) is not None

    @property
    def n_known(self) -> int:
        """Members, and those that are gone and may ask again."""
        return len(self._state.members)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._state.phase == "done"

    @property
    def is_known_by_all(self) -> bool:
        """Whether all members have left since: that an answer was sent says nothing, it may be lost on the road."""
        return self.is_over and not self._state.members.present()

    # --- Events ---

    def _take(self, event: Event) -> events.Answer | None:
        """Take an event; return the answer, for a worker or after a kick."""
        state = self._state
        match event:
            case events.Join():
                return self._join(event)
            case events.Kick():
                return self._kick(event)
            case events.Pause():
                self._pause(event.reason)
            case events.Resume():
                self._resume()
            case events.Start():
                state.is_told_to_start = True
            case events.Stop():
                self._stop(event)
            case events.Applied():
                self._commit(event.is_finite)
            case events.Tick():
                pass
            case _:
                return self._of_worker(event)
        return None

    def _of_worker(self, event: events.OfWorker) -> events.Answer:
        state = self._state
        member = state.members.find(event.worker_id)
        if event.worker_id in state.members.banned:
            return events.BANNED
        if member is None:
            return events.UNKNOWN
        if isinstance(event, events.Pull) and event.is_again:
            return events.UNKNOWN if member.state == "gone" else self._pull(member, event.have)
        if not self._renew(member):
            return events.UNKNOWN
        if not isinstance(event, events.Seen) or event.progress is None or event.progress != member.progress:
            member.moved_s = state.now_s
            if member.state == "stalled":
                self._activate(member)
                state.log(f"{member.title} makes progress again")
        if member.state == "paused" and not isinstance(event, events.Seen | events.Offer | events.Leave):
            self._activate(member)
        match event:
            case events.Pull():
                return self._pull(member, event.have)
            case events.Offer():
                return self._judge(member, event) or events.Noted()
            case events.Push():
                return self._push(member, event)
            case events.Take():
                return self._lease(member, event)
            case events.Leave():
                self._remove(member, event.reason[:MAX_TEXT], can_return=False, is_failure=event.is_failure)
            case events.Rest(is_over=False):
                member.state = "paused"
                state.leases.release(member.worker_id)
                state.log(f"{member.title} rests")
            case events.Seen():
                member.progress = event.progress
            case events.Rest():
                pass
        return events.Noted()

    def _renew(self, member: Member) -> bool:
        """Renew the lease of a member; return False for one that is gone for good."""
        if member.state == "gone" and not self._state.members.revive(member):
            return False
        member.seen_s = self._state.now_s
        if member.state == "joining":
            self._activate(member)
            self._state.log(f"{member.title} is a member")
        return True

    def _activate(self, member: Member) -> None:
        """Have a member take part from now on."""
        state = self._state
        least = state.members.least_clock(applied=True, but=[member])
        if least is not None and not member.can_return:
            member.clock = member.applied_clock = least
        member.is_behind = least is not None and member.clock < least - state.options.max_lead
        member.state, member.can_return, member.is_out = "active", True, False
        member.busy_s = state.now_s

    def _join(self, event: events.Join) -> events.Answer:
        state = self._state
        banned = state.members.banned
        if event.process in banned or event.before in banned:
            return events.BANNED
        before = None if event.before is None else state.members.find(event.before)
        if state.over is not None and (before is None or state.over[1]):
            return events.Over(*state.over)
        if before is not None and before.state != "gone":
            self._remove(before, "it has joined again", can_return=False)
        # Where samples go by leases, ranks decide nothing.
        is_by_rank = not state.options.dataset_size
        if is_by_rank and (
            unproven := state.members.unproven(event.process, state.options.world_size, state.now_s)
        ):
            return _full(
                f"the run has its {state.options.world_size} workers, unless one of these is gone: {titles(unproven)}",
                1.0,
            )
        member = state.members.add(event.worker_id, event.name, state.now_s, before, state.options.world_size)
        if member is None:
            return _full("the run has as many workers as it can have", state.options.lost_after_s)
        member.process = event.process
        return events.Welcome(member.rank, state.version)

    def _pull(self, member: Member, have: Version | None) -> events.Answer:
        state = self._state
        if state.over is not None:
            # A worker that has heard of the end asks once more, for the last weights.
            return (
                events.Serve(state.version)
                if have is None and not state.over[1]
                else events.Over(*state.over)
            )
        # A member that has these weights and has not pushed with them has lost its gradient: it would wait for itself.
        has_pushed = have == state.version and (have in member.counted or state.phase == "apply")
        if state.pause_reason is not None or self._policy.holds(member) or has_pushed:
            member.busy_s = None
            return events.Hold()
        member.busy_s = state.now_s
        if member.is_behind:
            member.is_behind = False
            least = state.members.least_clock(applied=True, but=[member])
            member.clock = member.applied_clock = member.clock if least is None else least
        return events.Serve(state.version)

    def _judge(self, member: Member, event: events.Offer | events.Push) -> events.Answer | None:
        """Return why a push would not count; None if it would."""
        state, base = self._state, event.base
        if base in member.counted:
            return events.Counted(len(state.pending), self._policy.need(), again=True)
        if state.over is not None:
            return events.Over(*state.over)
        is_same = base.timeline == state.timeline
        if not is_same:
            reason: str | None = f"the server is at timeline {state.timeline} since it was started again"
        elif base.number > state.number:
            reason = f"there is no version {base} yet"
        elif state.ending is not None:
            reason = f"the run ends: {state.ending}"
        elif state.options.dataset_size and not state.leases.has(member.worker_id, event.data):
            # The worker was silent, or another process has its id by now.
            reason = "its samples were taken back, and others may have them"
        else:
            reason = self._policy.stale(member, base)
        if reason is None:
            return None
        # Also of one that is too late: the next round waits for it if that pays.
        state.members.note_work(member, state.now_s)
        member.busy_s = state.now_s
        state.refused += 1
        member.refused += 1
        if event.data is not None:
            state.leases.release(member.worker_id, event.data)
        return events.Stale(state.timeline, state.number + (state.phase == "apply"), message=reason)

    def _push(self, member: Member, event: events.Push) -> events.Answer:
        state = self._state
        refusal = self._judge(member, event)
        if refusal is not None:
            state.actions.append(events.Drop(event.content))
            return refusal
        state.members.note_work(member, state.now_s)
        member.busy_s = None
        member.counted.append(event.base)
        member.clock += 1
        member.pushes += 1
        member.loss = event.loss
        state.leases.count(member.worker_id, event.content, event.data)
        state.pending.append(Contribution(member, member.rank, event))
        return events.Counted(len(state.pending), self._policy.need())

    def _lease(self, member: Member, event: events.Take) -> events.Answer:
        state = self._state
        if state.over is not None:
            return events.Over(*state.over)
        number, last = event.number, member.lease_number
        if number < last or (number == last and not state.leases.has(member.worker_id, number)):
            return events.Refused(
                Code.SPENT, f"the lease {number} was used or taken back", "ask with the next number"
            )
        ranges = state.leases.take(member.worker_id, event.n, number)
        if not ranges:
            # It cannot push until another worker gives something back, so no round waits for it.
            member.state, member.is_out = "paused", True
            return events.Granted(())
        member.lease_number = number
        if member.busy_s is None:
            member.busy_s = state.now_s
        return events.Granted(ranges)

    def _remove(self, member: Member, reason: str, can_return: bool, is_failure: bool = False) -> None:
        state = self._state
        state.leases.release(member.worker_id)
        if member.state == "gone":
            member.can_return = member.can_return and can_return
            return
        state.members.remove(member, can_return)
        state.log(f"{member.title} is gone: {reason}", is_failure)
        # All pulls that waited for this one.
        state.actions.append(events.Changed())

    def _stall(self, member: Member) -> None:
        """Have no round wait for a member that lives and does not train; its next progress makes it take part again."""
        state = self._state
        state.leases.release(member.worker_id)
        member.state = "stalled"
        state.log(
            f"{member.title} lives, but has made no progress for {state.now_s - member.moved_s:.0f} s; no round waits for it",
            is_warning=True,
        )
        # All pulls that waited for this one.
        state.actions.append(events.Changed())

    # --- The owner ---

    def _kick(self, event: events.Kick) -> events.Answer:
        state = self._state
        member = state.members.find(event.worker_id)
        if member is None:
            return events.UNKNOWN
        # Not its name: that is of a machine, which may have other workers.
        state.members.banned |= {member.worker_id, member.process} - {""}
        self._remove(member, f"the owner has removed it: {event.reason[:MAX_TEXT]}", can_return=False)
        return events.Noted()

    def _pause(self, reason: str) -> None:
        state = self._state
        if state.pause_reason is None and state.over is None:
            state.pause_reason, state.paused_at_s = reason[:MAX_TEXT], state.now_s
            state.log(f"the run is paused: {state.pause_reason}")

    def _resume(self) -> None:
        state = self._state
        if state.pause_reason is not None:
            state.paused_s += state.now_s - state.paused_at_s
            state.pause_reason = None
            state.log("the run goes on")

    def _stop(self, event: events.Stop) -> None:
        state = self._state
        if state.over is not None:
            return
        if event.is_failure or (event.at_once and state.phase != "apply"):
            self._end(event.reason, event.is_failure)
            return
        if event.at_once:
            # The weights are changing: the step that is under way is the last one.
            self._drop(state.pending)
            state.pending = []
        self._resume()
        state.ending = event.reason[:MAX_TEXT]

    # --- Rounds ---

    def _advance(self) -> None:
        """Open a round, or close the open one, if it is time."""
        state = self._state
        if state.phase in ("apply", "done") or state.pause_reason is not None:
            return
        if state.ending is None and state.leases.is_done:
            state.ending = "all epochs are done"
        if state.ending is not None:
            batch = self._policy.rest()
            if not batch:
                self._end(state.ending, is_failure=False)
                return
        else:
            if state.phase == "waiting" and not self._can_open():
                return
            if state.phase == "waiting":
                state.enter("open")
                state.has_opened = True
                self._policy.opened()
            batch = self._policy.due()
        if batch:
            self._apply(batch)

    def _can_open(self) -> bool:
        state = self._state
        if state.options.mode != "bsp" and state.has_opened:
            return True
        if state.leases.is_drained:
            return True
        present = {one.worker_id for one in (*state.members.active(), *state.members.out())}
        present |= {one.member.worker_id for one in state.pending}
        if state.has_opened or state.is_told_to_start:
            return len(present) >= state.options.needed
        return len(present) >= state.options.world_size

    def _apply(self, batch: list[Contribution]) -> None:
        state = self._state
        shares = self._policy.shares(batch)
        state.applying, state.pending = batch, [one for one in state.pending if one not in batch]
        state.enter("apply")
        is_scaled = state.options.scale_rate == "world" and state.options.mode == "bsp"
        factor = float(len(batch)) if is_scaled else 1.0
        state.actions.append(events.Apply(state.version, shares, factor, self._policy.divisor(batch)))

    def _commit(self, is_finite: bool) -> None:
        state = self._state
        if state.phase != "apply":
            return
        batch, state.applying = state.applying, []
        state.number += 1
        if not is_finite:
            state.skipped += 1
            state.log(
                f"version {state.version} is as the one before: the step was not finite", is_warning=True
            )
        state.samples += sum(one.push.samples for one in batch)
        known = [(one.push.loss, one.push.samples) for one in batch if one.push.loss is not None]
        if known:
            state.loss = sum(loss * n for loss, n in known) / sum(n for _, n in known)
        for member in state.members.active():
            if member.busy_s is None:
                member.busy_s = state.now_s
        for one in batch:
            one.member.applied_clock = min(one.member.clock, one.member.applied_clock + 1)
            state.leases.commit(one.push.content)
            state.actions.append(events.Drop(one.push.content))
        state.enter("waiting")
        if state.number >= state.options.rounds:
            self._end(f"all {state.options.rounds} rounds are done", is_failure=False)
        elif state.ending is None and state.number % state.options.save_every == 0:
            state.actions.append(events.Save(state.snapshot()))

    def _end(self, reason: str, is_failure: bool) -> None:
        state = self._state
        self._drop([*state.applying, *state.pending])
        state.applying, state.pending = [], []
        state.over = (reason[:MAX_TEXT], is_failure)
        state.pause_reason = None
        state.enter("done")
        if not is_failure:
            # After a failure the weights may be half of a step: the last file is better.
            state.actions.append(events.Save(state.snapshot()))
        state.actions.append(events.Ended(*state.over))

    def _drop(self, batch: list[Contribution]) -> None:
        """Have pushes that count be in no step, because the run ends."""
        for one in batch:
            self._state.leases.drop(one.push.content)
            self._state.actions.append(events.Drop(one.push.content))
        if batch:
            self._state.log(
                f"{len(batch)} pushes that count are in no step, because the run ends", is_warning=True
            )


def _full(message: str, retry_s: float) -> events.Refused:
    return events.Refused(Code.FULL, message, "wait until one leaves", retry_s)
