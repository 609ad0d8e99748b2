"""Words of the order: calls, steps, tickets, and what master and workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Abort", "Answer", "Call", "Kind", "Order", "Output", "Step", "named"]


class Kind(IntEnum):
    """What a step is. Moves of an epoch come before all else."""

    MOVE = 0
    PRE = 1
    MAIN = 2
    POST = 3


@dataclass(frozen=True)
class Step:
    """One thing with a fixed set of participants.

    Attributes:
        kind: Kind of the step.
        workers: Participants, at least one.
        work: Work that they do; of no meaning to the order.
        expected_s: Constant for each kind of step; it only chooses between orders that are all correct. Measured
            times are no better, see docs/dataflow_design.md.
    """

    kind: Kind
    workers: frozenset[int]
    work: object = None
    expected_s: float = 1.0


@dataclass(frozen=True)
class Call:
    """A function and its rows: moves and pre-hooks, then main, then post-hooks.

    Attributes:
        number: Number of the call; never used twice.
        name: Name of the function.
        steps: Steps of the call, in their own order.
        oldest: Place among calls that are ready; lower is earlier.
        restores: Whether it brings a worker that has joined again to where other calls may use it.
    """

    number: int
    name: str
    steps: tuple[Step, ...]
    oldest: int = 0
    restores: bool = False

    @property
    def workers(self) -> frozenset[int]:
        """All participants of all steps."""
        return frozenset().union(*(step.workers for step in self.steps))

    @property
    def mains(self) -> frozenset[int]:
        """Participants of the main step."""
        return frozenset().union(*(step.workers for step in self.steps if step.kind is Kind.MAIN))

    @property
    def enclosed(self) -> frozenset[int]:
        """Workers on which no other call may run between its first pre-hook and its last step; none without pre-hooks.

        What a pre-hook has changed there, a post-hook may change back.
        """
        if all(step.kind is not Kind.PRE for step in self.steps):
            return frozenset()
        return frozenset().union(*(step.workers for step in self.steps if step.kind in (Kind.PRE, Kind.MAIN)))


@dataclass(frozen=True)
class Order:
    """To a worker: run a step when all tickets before it have ended here.

    Attributes:
        incarnation: Incarnation of the master.
        ticket: Place in the one order of all steps.
        call: Number of the call.
        step: Step to run, with the other participants.
    """

    incarnation: int
    ticket: int
    call: int
    step: Step


@dataclass(frozen=True)
class Abort:
    """To a worker: return from this step, or skip it.

    Attributes:
        incarnation: Incarnation of the master.
        ticket: Ticket of the step.
        reason: Reason of the abort.
    """

    incarnation: int
    ticket: int
    reason: str


@dataclass(frozen=True)
class Answer:
    """To the one that posted a call: it is done, or it failed. Each call has exactly one.

    Attributes:
        call: Number of the call.
        name: Name of its function.
        reason: Reason of the failure; None if the call is done.
    """

    call: int
    name: str
    reason: str | None = None


#: What the master has to say: messages to workers, and answers.
Output = tuple[int, Order] | tuple[int, Abort] | Answer


def named(ticket: int, step: Step, call: Call) -> str:
    """Return a step in words: its ticket, its phase, and its call."""
    return f"ticket {ticket}, {step.kind.name.lower()} of {call.name} (call {call.number})"
