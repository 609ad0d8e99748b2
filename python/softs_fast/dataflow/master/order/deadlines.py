"""Deadlines of steps: which worker has kept one too long. No clock, no process: times and sightings go in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .steps import Step

__all__ = ["Deadlines", "Late", "Seen", "culprits"]


@dataclass(frozen=True)
class Late:
    """A step that has not ended at its deadline.

    Attributes:
        step: Step with its ticket.
        workers: Participants that have not ended it; all of them could be inside.
        since_s: Time since when all of them could be inside.
        deadline_s: Seconds that they may take.
    """

    step: Step
    workers: frozenset[int]
    since_s: float
    deadline_s: float


@dataclass(frozen=True)
class Seen:
    """What was seen of a worker that is late.

    Attributes:
        stopped: Text on how the process of the worker stands still; empty if it does not.
        answers: Whether its native thread has answered.
        inside: Ticket that it says it is inside of; None: of none, or it has not answered.
        waits: Text of the worker on what it waits for within the step; empty if it computes.
        where: Innermost frames of its Python code; empty if they were not asked.
    """

    stopped: str = ""
    answers: bool = True
    inside: int | None = None
    waits: str = ""
    where: str = ""


class Deadlines:
    """Since when each worker could be inside of its step, and which steps are late.

    A worker runs its steps by ticket, so it can be inside of the lowest one that it has not ended, and of no other. The
    time of a step begins when all participants that have not ended it can be inside. So one that is late for a step is
    late for the step before it, by the deadline of that one, and those that wait for it are not.

    Args:
        deadline_of: Function that returns how long a step may take, seconds; None: any time.
    """

    def __init__(self, deadline_of: Callable[[Step], float | None]) -> None:
        self._deadline_of = deadline_of
        #: When all could be inside of a step, by its ticket.
        self._since_s: dict[int, float] = {}
        self._running: list[Late] = []

    def observe(self, steps: Sequence[Step], now_s: float, held_back: Collection[int] = ()) -> None:
        """Take the steps that have not ended, after each event.

        Args:
            steps: Steps, sorted by ticket.
            now_s: Present time.
            held_back: Tickets of those of which a participant has not been told.
        """
        lowest: dict[int, int] = {}
        since_s: dict[int, float] = {}
        self._running = []
        for step in steps:
            for worker in step.missing:
                lowest.setdefault(worker, step.ticket)
            # A step that has begun goes on when some of its participants have ended it.
            has_begun = step.ticket in self._since_s
            is_told = step.ticket not in held_back
            if has_begun or (is_told and all(lowest[worker] == step.ticket for worker in step.missing)):
                since_s[step.ticket] = self._since_s.get(step.ticket, now_s)
                deadline_s = self._deadline_of(step)
                if deadline_s is not None:
                    workers = frozenset(step.missing)
                    self._running.append(Late(step, workers, since_s[step.ticket], deadline_s))
        self._since_s = since_s

    def late(self, now_s: float) -> list[Late]:
        """Return the steps that are late, as they were observed last."""
        return [one for one in self._running if now_s >= one.since_s + one.deadline_s]

    def due_s(self) -> float | None:
        """Return when the next step will be late; None: no step that runs has a deadline."""
        return min((one.since_s + one.deadline_s for one in self._running), default=None)

    def restart(self, late: Late, now_s: float) -> None:
        """Give those that remain in a step its whole time again: another one was to blame, and they are told to return."""
        if late.step.ticket in self._since_s:
            self._since_s[late.step.ticket] = now_s


def culprits(late: Late, seen: Mapping[int, Seen], now_s: float) -> dict[int, str]:
    """Return the workers that are to blame for a late step, with the reason of each.

    Those with a process that is stopped; otherwise those that do not answer; otherwise those that compute, or have not begun;
    otherwise all: they wait for each other.

    Args:
        late: Step that is late.
        seen: Observation of each worker of the step, by its number.
        now_s: Present time.
    """
    groups: tuple[Callable[[Seen], bool], ...] = (
        lambda one: bool(one.stopped),
        lambda one: not one.answers,
        lambda one: not one.waits,
        lambda one: True,
    )
    for is_one in groups:
        found = {worker: one for worker, one in seen.items() if is_one(one)}
        if found:
            others = sorted(set(seen) - set(found))
            return {worker: _reason(late, one, others, now_s) for worker, one in sorted(found.items())}
    return {}


def _reason(late: Late, seen: Seen, others: list[int], now_s: float) -> str:
    text = (
        f"{late.step}, is with it since {now_s - late.since_s:.1f} s, and its deadline is {late.deadline_s:g} s; "
        f"{_state(late.step.ticket, seen)}"
    )
    if others:
        text += f"; not to blame there: {', '.join(f'worker {worker}' for worker in others)}"
    return text


def _state(ticket: int, seen: Seen) -> str:
    if seen.stopped:
        return f"its process is {seen.stopped}"
    if not seen.answers:
        return "its native thread does not answer"
    if seen.inside != ticket:
        return "it has not begun the step"
    text = f"it is inside and waits for {seen.waits}" if seen.waits else "it is inside, and its process runs"
    return f"{text}; it was in {seen.where}" if seen.where else text
