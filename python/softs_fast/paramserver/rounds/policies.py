"""When pushes are applied: in rounds of all workers, one by one with bounded lead, or buffered with bounded age."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from .events import Share, Version
from .members import Member
from .pace import SLACK, paying_s
from .state import Contribution, State

__all__ = ["Barrier", "BoundedLead", "BufferedAge", "Policy", "policy_of"]

#: Of times from which pauses were subtracted.
_ROUNDING_S = 1e-6


class Policy(ABC):
    """Decides which pushes count and when they become a step.

    Args:
        state: State of the run.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    @abstractmethod
    def stale(self, member: Member, base: Version) -> str | None:
        """Return why a push for weights of this timeline does not count; None if it does."""

    @abstractmethod
    def need(self) -> int:
        """Return the pushes that the next step needs."""

    @abstractmethod
    def due(self) -> list[Contribution]:
        """Return the pushes that become a step now; none if it is not the time."""

    def rest(self) -> list[Contribution]:
        """Return the pushes of the last step of a run that is told to end."""
        return self._state.pending[: self.need()]

    @abstractmethod
    def shares(self, batch: list[Contribution]) -> tuple[Share, ...]:
        """Return pushes with their weights, in the order of the sum."""

    def divisor(self, batch: list[Contribution]) -> float:
        """Return the divisor of that sum."""
        return sum(one.push.samples for one in batch)

    def holds(self, member: Member) -> bool:
        """Return whether a member must wait for others before it gets newer weights."""
        return False

    def opened(self) -> None:
        """Note that pushes of the present version are awaited."""
        return

    def close_s(self) -> float | None:
        """Return the time, without pauses, at which `due` changes by itself."""
        return None


class Barrier(Policy):
    """Bulk synchronous rounds with a quorum: all active members push, or the round waits as long as pays."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._opened_s = 0.0
        #: Time at which the round closes with what it has; None below the quorum.
        self._end_s: float | None = None
        self._is_late = False

    def stale(self, member: Member, base: Version) -> str | None:
        state = self._state
        if base.number == state.number and state.phase != "apply":
            return None
        return f"the round of version {base} is closed"

    def opened(self) -> None:
        self._opened_s = self._state.clock_s
        self._end_s = None
        self._is_late = False

    def need(self) -> int:
        return self._state.options.needed

    def missing(self) -> list[Member]:
        """Return the active members that have not pushed."""
        # One that has joined again does not push again.
        return [one for one in self._state.members.active() if self._state.version not in one.counted]

    def due(self) -> list[Contribution]:
        state, options = self._state, self._state.options
        pending = state.pending
        bound = options.round_samples
        if bound is not None and sum(one.push.samples for one in pending) >= bound:
            return pending
        # At the end of the data some workers have none: a round does without them.
        n_out = options.needed if state.leases.is_drained else len(state.members.out())
        if pending and len(pending) + n_out >= options.needed and not self.missing():
            return pending
        if len(pending) < options.needed:
            self._end_s = None
            state.enter("open")
            self._note_late()
            return []
        if self._end_s is None:
            self._end_s = self._grace_end_s()
        state.enter("grace")
        return [] if self._is_before(self._end_s) else pending

    def rest(self) -> list[Contribution]:
        pending = self._state.pending
        is_enough = len(pending) >= self._state.options.needed or self._state.leases.is_drained
        return pending if is_enough else []

    def shares(self, batch: list[Contribution]) -> tuple[Share, ...]:
        ordered = sorted(batch, key=lambda one: (one.rank, one.member.worker_id))
        return tuple(one.share(one.push.samples) for one in ordered)

    def close_s(self) -> float | None:
        if self._state.phase == "grace":
            return self._end_s
        timeout_s = self._state.options.round_timeout_s
        if self._state.phase == "open" and timeout_s is not None and not self._is_late:
            return self._opened_s + timeout_s
        return None

    def _is_before(self, at_s: float) -> bool:
        return self._state.clock_s < at_s - _ROUNDING_S

    def _grace_end_s(self) -> float:
        """Return when a round ends that has its quorum now: also the first one, of which the pushes are known by now.

        Source: own; the wait for a part of the workers is that of Chen et al., Revisiting Distributed Synchronous SGD, 2016.
        """
        state, bound_s = self._state, self._state.options.round_timeout_s
        usual_s = paying_s([one.work_s for one in state.members.active()], state.options.needed) or 0.0
        waits_s = SLACK * max(usual_s, state.clock_s - self._opened_s)
        return self._opened_s + (waits_s if bound_s is None else min(waits_s, bound_s))

    def _note_late(self) -> None:
        """Say once that the time of a round is over and it has no quorum; it stays open."""
        timeout_s = self._state.options.round_timeout_s
        if timeout_s is None or self._is_late or self._is_before(self._opened_s + timeout_s):
            return
        self._is_late = True
        self._state.log(
            f"round {self._state.number} is open for {timeout_s:g} s and has {len(self._state.pending)} of "
            f"{self._state.options.needed} pushes; it stays open",
            is_warning=True,
        )


class BoundedLead(Policy):
    """Stale synchronous parallel: each push is a step, and a worker waits while it is too far ahead of the slowest.

    Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NIPS 2013.
    """

    def stale(self, member: Member, base: Version) -> str | None:
        if not member.is_behind:
            return None
        return f"{member.title} was away, and the others are more than {self._state.options.max_lead} pushes ahead"

    def holds(self, member: Member) -> bool:
        if member.is_behind:
            return False
        # Pushes that wait for their step are not in the weights yet, its own included.
        least = self._state.members.least_clock(applied=True)
        is_ahead = least is not None and member.clock > least + self._state.options.max_lead
        return is_ahead or member.applied_clock < member.clock

    def need(self) -> int:
        return 1

    def due(self) -> list[Contribution]:
        return self.rest()

    def shares(self, batch: list[Contribution]) -> tuple[Share, ...]:
        return tuple(one.share(1.0) for one in batch)

    def divisor(self, batch: list[Contribution]) -> float:
        return 1.0


class BufferedAge(Policy):
    """Asynchronous steps of some pushes each; the older the weights of a push, the less it changes.

    Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.
    """

    def stale(self, member: Member, base: Version) -> str | None:
        age, most = self._state.number - base.number, self._state.options.max_age
        return f"version {base} is {age} versions old; {most} are allowed" if age > most else None

    def need(self) -> int:
        return self._state.options.pushes_per_step

    def due(self) -> list[Contribution]:
        state = self._state
        if len(state.pending) >= self.need():
            return state.pending[: self.need()]
        # If each worker has pushed for the present version, none has anything newer to compute with.
        is_all = all(state.version in one.counted for one in state.members.active())
        return list(state.pending) if is_all else []

    def shares(self, batch: list[Contribution]) -> tuple[Share, ...]:
        # The divisor is of the samples, not of the weights, so that age makes the step smaller.
        number = self._state.number
        return tuple(
            one.share(one.push.samples / math.sqrt(1 + number - one.push.base.number)) for one in batch
        )


def policy_of(state: State) -> Policy:
    """Return the policy that the options name."""
    match state.options.mode:
        case "bsp":
            return Barrier(state)
        case "ssp":
            return BoundedLead(state)
        case _:
            return BufferedAge(state)
