"""Words of the order: calls, and their steps with and without tickets. Both live as long as what they are of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ....errors import FlowError
from ....records import Count, Message
from ...declare.plan import FunctionPlan
from ..rows.records import Taken, Text

__all__ = ["Abort", "CallState", "Kind", "Output", "Step"]


class Kind(IntEnum):
    """What a step is. Moves of an epoch come before all else."""

    MOVE = 0
    PRE = 1
    MAIN = 2
    POST = 3


@dataclass(frozen=True)
class Step:
    """One thing with a fixed set of participants; with a ticket it has its place in the one order of all steps.

    Attributes:
        kind: Kind of the step.
        workers: Participants, at least one.
        work: Work that they do; of no meaning to the order.
        expected_s: Constant for each kind of step; it only chooses between orders that are all correct. Measured
            times are no better, see docs/dataflow_design.md.
        ticket: Place in the order, from 1; a worker runs the step when all tickets before it have ended there.
        call: Number of the call that the step belongs to.
        name: Name of that call.
        missing: Participants that have not reported its end.
        since_s: Time at which the ticket was given.
    """

    kind: Kind
    workers: frozenset[int]
    work: object = None
    expected_s: float = 1.0
    ticket: int = 0
    call: int = 0
    name: str = ""
    missing: set[int] = field(default_factory=set, compare=False)
    since_s: float = 0.0

    def __str__(self) -> str:
        """Return its ticket, its phase, and its call."""
        return f"ticket {self.ticket}, {self.kind.name.lower()} of {self.name} (call {self.call})"


@dataclass(eq=False)
class CallState:
    """A call of a function on rows, or of hooks: moves and pre-hooks, then main, then post-hooks.

    It lives from the offer of the call to its answer, of which each call has exactly one: the state itself.

    Attributes:
        number: Number of the call; never used twice.
        name: Name of the function.
        steps: Steps of the call, in their own order; from its begin on without the parts of workers that are away.
        oldest: Place among calls that are ready; lower is earlier.
        restores: Whether it brings a worker that has joined again to where other calls may use it.
        function: Function that it calls; None for hooks that were posted by hand.
        taken: Rows of the call; None for hooks.
        is_posted: Whether a caller has posted it by hand.
        since_s: Time when the call was made.
        open: Tickets of the call that have not ended.
        later: Steps that get tickets when these have ended.
        is_answered: Whether it has its answer; steps of a call that has failed may still be open.
        reason: Reason of the failure; None if the call is done.
        ids: Rows of which its main part has reported.
        numbers: Numbers that its steps have reported.
        times: Seconds of its steps by name and ticket.
        digest: Digest of ids and inputs.
        not_finite: Rows with a NaN or an infinity that it has read, by column.
        error: Error of the first step that failed.
        cause: Exception that has caused it, where it was raised in this process.
    """

    number: int
    name: str
    steps: tuple[Step, ...]
    oldest: int = 0
    restores: bool = False
    function: FunctionPlan | None = None
    taken: Taken | None = None
    is_posted: bool = False
    since_s: float = 0.0
    open: set[int] = field(default_factory=set)
    later: tuple[Step, ...] = ()
    is_answered: bool = False
    reason: str | None = None
    ids: tuple[int, ...] = ()
    numbers: dict[str, float] = field(default_factory=dict)
    times: dict[str, dict[int, float]] = field(default_factory=dict)
    digest: str = ""
    not_finite: dict[str, int] = field(default_factory=dict)
    error: FlowError | None = None
    cause: BaseException | None = None

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

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of its steps by name, the sum over steps of one name; of several workers those of the slowest one."""
        return {name: sum(steps.values()) for name, steps in self.times.items()}

    def add_time(self, name: str, ticket: int, seconds: float) -> None:
        """A worker's part in a step has ended.

        Args:
            name: Name of the hook, or of the part of a main step.
            ticket: Ticket of the step.
            seconds: Seconds that the worker's part took.
        """
        steps = self.times.setdefault(name, {})
        steps[ticket] = max(steps.get(ticket, 0.0), seconds)


class Abort(Message, tag=3):
    """To a worker: skip a step that waits, or return from a hook; what a function that runs makes is dropped.

    Attributes:
        ticket: Ticket of the step.
        reason: Reason of the abort.
    """

    ticket: Count
    reason: Text


#: What the master has to say: messages to workers, and calls that have their answers.
Output = tuple[int, Step] | tuple[int, Abort] | CallState
