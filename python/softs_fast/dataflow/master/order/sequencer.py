"""The master's side of the order: which calls begin together, and the tickets of their steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .choosing import in_order
from .ready import ReadyCalls
from .steps import Abort, Answer, Call, Kind, Order, Output, Step

__all__ = ["Sequencer", "Ticket"]


@dataclass
class Ticket:
    """A step that has its place in the order.

    Attributes:
        number: Place of the step in the order.
        call: Call that the step belongs to.
        step: Step that is run.
        missing: Participants that have not reported its end.
        since_s: Time at which the ticket was given.
    """

    number: int
    call: Call
    step: Step
    missing: set[int]
    since_s: float


@dataclass
class _Progress:
    """A call with tickets.

    Attributes:
        call: Call with all of its steps.
        open: Tickets of the call that have not ended.
        later: Steps that get tickets when these have ended.
        is_answered: Whether the call has failed.
    """

    call: Call
    open: set[int] = field(default_factory=set)
    later: tuple[Step, ...] = ()
    is_answered: bool = False


class Sequencer:
    """Gives tickets. Every call that was offered or posted gets exactly one answer, whatever dies.

    It cannot hang: let s be the lowest ticket that has not ended. All its participants have ended what is before s, or
    were not in it, so each is at s or gets there without waiting for another one; s ends, or is aborted when one of them
    dies. By induction every ticket ends. A worker that joins again is a new one to the order: it has no part in tickets
    that were given before. docs/dataflow_design.md has the assumptions.

    Args:
        workers: Numbers of all workers.
        depth: Number of unfinished mains that a worker may have; with 2 none is idle for a round trip.
        incarnation: Incarnation of this master; larger than that of the one before it.
        has_late_hooks: Whether post-hooks in which other workers take part get tickets when the main part has ended,
            and not with it. A worker that takes part in a hook alone, such as a generator that gets weights, would
            enter it, and wait there until the main part has ended, in place of calls that it could run. Where no
            calls overlap, tickets at once save a message, and their order does not depend on time.
    """

    def __init__(
        self,
        workers: Iterable[int],
        *,
        depth: int = 2,
        incarnation: int = 1,
        has_late_hooks: bool = False,
    ) -> None:
        self.incarnation = incarnation
        self._alive = set(workers)
        # Workers that will join again, and those of the living that have joined again and are not restored yet.
        self._away: set[int] = set()
        self._restoring: set[int] = set()
        self._depth = depth
        self._has_late_hooks = has_late_hooks
        self._next = 1
        self._ready = ReadyCalls()
        self._parked: dict[int, Call] = {}
        self._tickets: dict[int, Ticket] = {}
        self._running: dict[int, _Progress] = {}
        # Calls of which all tickets have ended, and of which steps are left.
        self._due: list[int] = []
        self._mains = dict.fromkeys(self._alive, 0)
        self._outputs: list[Output] = []

    # --- Calls come ---

    def offer(self, call: Call) -> None:
        """Take a call that is ready: its rows are all there."""
        self._ready.add(call)

    def park(self, call: Call) -> None:
        """Take a call that waits until a flush names it."""
        self._parked[call.number] = call

    def flush(self, numbers: Iterable[int]) -> None:
        """Calls that are parked are ready now, before all others; those that are ready or have tickets are left as they are.

        Raises:
            ValueError: one of them is neither; nothing is changed then.
        """
        numbers = list(dict.fromkeys(numbers))
        unknown = [
            one
            for one in numbers
            if not any(one in known for known in (self._parked, self._ready, self._running))
        ]
        if unknown:
            raise ValueError(
                f"flush names calls {unknown}, which are not parked; parked are {sorted(self._parked)}"
            )
        for number in numbers:
            if number in self._parked:
                self._ready.add(self._parked.pop(number))

    # --- Events ---

    def report(self, worker: int, incarnation: int, ticket: int, reason: str | None = None) -> None:
        """A worker's part in a step has ended; late and double reports are dropped.

        Args:
            worker: Number of the worker.
            incarnation: Incarnation of the master, as in the order.
            ticket: Ticket of the step, as in the order.
            reason: Reason of the failure; None if the part is done.
        """
        one = self._tickets.get(ticket) if incarnation == self.incarnation else None
        if one is None or worker not in one.missing:
            return
        one.missing.discard(worker)
        if reason is not None:
            self._fail(one.call, reason)
        self._end_if_complete(one)

    def lose(self, worker: int, reason: str, *, returns: bool = False) -> None:
        """A worker has died: its steps have failed, and what remains has live participants only.

        Args:
            worker: Number of the worker.
            reason: Text on what is known of its end.
            returns: Whether it will join again. Then calls for which it only takes part in hooks continue without
                it, and calls that have no tickets wait for it.
        """
        if worker not in self._alive and worker not in self._away:
            return
        for known in (self._alive, self._restoring, self._away):
            known.discard(worker)
        if returns:
            self._away.add(worker)
        involved = [one for one in self._tickets.values() if worker in one.missing]
        for one in involved:
            one.missing.discard(worker)
        for one in involved:
            if not returns or worker in one.call.mains:
                self._fail(one.call, reason)
            self._end_if_complete(one)
        for progress in self._running.values():
            if not returns and any(worker in step.workers for step in progress.later):
                self._fail(progress.call, reason)
        for call in [call for call in (*self._ready, *self._parked.values()) if worker in call.workers]:
            if not returns or worker in call.mains:
                self.cancel(call.number, reason)

    def join(self, worker: int) -> None:
        """A worker that was lost has joined again: calls that restore it, and hooks, get tickets."""
        self._away.discard(worker)
        self._alive.add(worker)
        self._restoring.add(worker)

    def restored(self, worker: int) -> None:
        """A worker that has joined again is as it should be: all calls get tickets."""
        self._restoring.discard(worker)

    def cancel(self, number: int, reason: str) -> bool:
        """Answer a call that has no tickets yet; returns False if it has, or is unknown."""
        call = self.withdraw(number)
        if call is None:
            return False
        self._outputs.append(Answer(call.number, call.name, reason))
        return True

    def withdraw(self, number: int) -> Call | None:
        """Take back a call that has no tickets yet, and return it: the caller answers it. None if it has, or is unknown."""
        return self._ready.remove(number) or self._parked.pop(number, None)

    def advance(self, now_s: float) -> list[Output]:
        """Give tickets to what fits; returns all that is to be said since the last time, in this order."""
        known = self._alive | self._away
        for call in self._ready.beyond(known):
            self.cancel(call.number, f"workers {sorted(call.workers - known)} are lost")
        for call, step in self._late_steps():
            self._give(call, step, now_s)
        epoch = self._epoch()
        if epoch:
            busy_s = dict.fromkeys(self._alive, 0.0)
            for one in self._tickets.values():
                for worker in one.missing:
                    busy_s[worker] += one.step.expected_s
            for call, step in in_order(epoch, busy_s.items()):
                self._give(call, step, now_s)
        outputs, self._outputs = self._outputs, []
        return outputs

    # --- What is known ---

    @property
    def alive(self) -> frozenset[int]:
        """Workers that have not died; of those that have joined again the ones that are restored."""
        return frozenset(self._alive - self._restoring)

    @property
    def away(self) -> frozenset[int]:
        """Workers that were lost and are not restored yet."""
        return frozenset(self._away | self._restoring)

    def has_run(self, number: int) -> bool:
        """Return whether the main part of a call has ended well, and the call goes on."""
        progress = self._running.get(number)
        return (
            progress is not None
            and not progress.is_answered
            and not any(self._tickets[one].step.kind is Kind.MAIN for one in progress.open)
        )

    @property
    def tickets(self) -> list[Ticket]:
        """Steps that have not ended, by ticket."""
        return sorted(list(self._tickets.values()), key=lambda ticket: ticket.number)

    def is_waiting(self, number: int) -> bool:
        """Return whether a call has no tickets yet."""
        return number in self._ready or number in self._parked

    @property
    def parked(self) -> list[Call]:
        """Calls that wait for a flush."""
        return list(self._parked.values())

    @property
    def ready(self) -> list[Call]:
        """Calls that wait for a worker, the oldest first."""
        return list(self._ready)

    # --- Inside ---

    def _epoch(self) -> list[Call]:
        """Take from the ready calls what fits, the oldest first."""
        epoch: list[Call] = []
        # A call that waits for a turn keeps its workers from younger ones, so it never starves.
        kept: set[int] = set()
        # Nor may one come between hooks of a call that nest, of which the last ones get their tickets later.
        due: set[int] = set()
        begun: set[int] = set()

        def note(progress: _Progress) -> None:
            if progress.later:
                kept.update(progress.call.enclosed)
                due.update(*(step.workers for step in progress.later))

        for progress in self._running.values():
            note(progress)
        restored = self.alive

        def begin(call: Call) -> bool:
            if not call.mains <= (self._alive if call.restores else restored):
                return False  # it waits for a worker that joins again
            # In an epoch others may get places behind it, and before its last hooks.
            is_apart = call.enclosed & begun and self._has_late_hooks and _parted(call)[1]
            if (
                call.workers & kept
                or call.enclosed & due
                or is_apart
                or any(self._mains[worker] >= self._depth for worker in call.mains)
            ):
                kept.update(call.workers)
                return False
            epoch.append(self._begin(call))
            note(self._running[call.number])
            begun.update(call.workers)
            return True

        self._ready.visit(begin)
        return epoch

    def _begin(self, call: Call) -> Call:
        """Begin a call; returns it with the steps that get tickets now."""
        present = self._present(call)
        now, later = _parted(present) if self._has_late_hooks else (present.steps, ())
        self._ready.remove(call.number)
        self._running[call.number] = _Progress(present, later=later)
        for worker in call.mains:
            self._mains[worker] += 1
        return replace(present, steps=now)

    def _present(self, call: Call) -> Call:
        """Return a call without the parts that workers would have in its hooks which will join again."""
        return call if call.workers <= self._alive else replace(call, steps=self._living(call.steps))

    def _living(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        present = [replace(step, workers=step.workers & self._alive) for step in steps]
        return tuple(step for step in present if step.workers)

    def _late_steps(self) -> list[tuple[Call, Step]]:
        """Return the steps of calls of which all others have ended; calls without any are at their end."""
        found = []
        due, self._due = self._due, []
        for number in due:
            progress = self._running[number]
            later = () if progress.is_answered else self._living(progress.later)
            progress.later = ()
            found += [(progress.call, step) for step in later]
            if not later:
                self._end(progress)
        return found

    def _give(self, call: Call, step: Step, now_s: float) -> None:
        """Give a ticket to a step."""
        number, self._next = self._next, self._next + 1
        self._tickets[number] = Ticket(number, call, step, set(step.workers), now_s)
        self._running[call.number].open.add(number)
        order = Order(self.incarnation, number, call.number, step)
        self._outputs += [(worker, order) for worker in sorted(step.workers)]

    def _fail(self, call: Call, reason: str) -> None:
        """Answer a call that has tickets, and abort all of them."""
        progress = self._running[call.number]
        if progress.is_answered:
            return
        progress.is_answered = True
        self._outputs.append(Answer(call.number, call.name, reason))
        for number in sorted(progress.open):
            for worker in sorted(self._tickets[number].missing):
                self._outputs.append((worker, Abort(self.incarnation, number, reason)))

    def _end_if_complete(self, one: Ticket) -> None:
        if one.missing or one.number not in self._tickets:
            return
        del self._tickets[one.number]
        progress = self._running[one.call.number]
        progress.open.discard(one.number)
        if progress.open:
            return
        if progress.later and not progress.is_answered:
            self._due.append(one.call.number)
        else:
            self._end(progress)

    def _end(self, progress: _Progress) -> None:
        call = progress.call
        del self._running[call.number]
        for worker in call.mains:
            self._mains[worker] -= 1
        if not progress.is_answered:
            self._outputs.append(Answer(call.number, call.name))


def _parted(call: Call) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return the steps of a call that get tickets when it begins, and those that get them when these have ended."""
    mains = call.mains
    for place, step in enumerate(call.steps):
        if mains and step.kind is Kind.POST and not step.workers <= mains:
            return call.steps[:place], call.steps[place:]
    return call.steps, ()
