"""The master's side of the order: which calls begin together, and the tickets of their steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .choosing import in_order
from .ready import ReadyCalls
from .steps import Abort, CallState, Kind, Output, Step

__all__ = ["Sequencer"]


class Sequencer:
    """Gives tickets. Every call that was offered or posted gets exactly one answer, whatever dies.

    It cannot hang: let s be the lowest ticket that has not ended. All its participants have ended what is before s, or
    were not in it, so each is at s or gets there without waiting for another one; s ends, or is aborted when one of them
    dies. By induction every ticket ends. A worker that joins again is a new one to the order: it has no part in tickets
    that were given before. docs/dataflow_design.md has the assumptions.

    Args:
        workers: Numbers of all workers.
        depth: Number of unfinished mains that a worker may have; with 2 none is idle for a round trip.
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
        has_late_hooks: bool = False,
    ) -> None:
        self._alive = set(workers)
        # Workers that will join again, and those of the living that have joined again and are not restored yet.
        self._away: set[int] = set()
        self._restoring: set[int] = set()
        self._depth = depth
        self._has_late_hooks = has_late_hooks
        self._next = 1
        self._ready = ReadyCalls()
        self._parked: dict[int, CallState] = {}
        self._tickets: dict[int, Step] = {}
        #: Calls with tickets.
        self._running: dict[int, CallState] = {}
        # Calls of which all tickets have ended, and of which steps are left.
        self._due: list[int] = []
        self._mains = dict.fromkeys(self._alive, 0)
        self._outputs: list[Output] = []

    # --- Calls come ---

    def offer(self, call: CallState) -> None:
        """Take a call that is ready: its rows are all there."""
        self._ready.add(call)

    def park(self, call: CallState) -> None:
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

    def report(self, worker: int, ticket: int, reason: str | None = None) -> None:
        """A worker's part in a step has ended; late and double reports are dropped.

        Args:
            worker: Number of the worker.
            ticket: Ticket of the step, as in the order.
            reason: Reason of the failure; None if the part is done.
        """
        one = self._tickets.get(ticket)
        if one is None or worker not in one.missing:
            return
        one.missing.discard(worker)
        if reason is not None:
            self._fail(self._running[one.call], reason)
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
            if not returns or worker in self._running[one.call].mains:
                self._fail(self._running[one.call], reason)
            self._end_if_complete(one)
        for call in self._running.values():
            if not returns and any(worker in step.workers for step in call.later):
                self._fail(call, reason)
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
        self._answer(call, reason)
        return True

    def withdraw(self, number: int) -> CallState | None:
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
                    busy_s[worker] += one.expected_s
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
        call = self._running.get(number)
        return (
            call is not None
            and not call.is_answered
            and not any(self._tickets[one].kind is Kind.MAIN for one in call.open)
        )

    @property
    def tickets(self) -> list[Step]:
        """Steps that have not ended, by ticket."""
        return sorted(list(self._tickets.values()), key=lambda step: step.ticket)

    def is_waiting(self, number: int) -> bool:
        """Return whether a call has no tickets yet."""
        return number in self._ready or number in self._parked

    @property
    def parked(self) -> list[CallState]:
        """Calls that wait for a flush."""
        return list(self._parked.values())

    @property
    def ready(self) -> list[CallState]:
        """Calls that wait for a worker, the oldest first."""
        return list(self._ready)

    # --- Inside ---

    def _epoch(self) -> list[tuple[CallState, tuple[Step, ...]]]:
        """Take from the ready calls what fits, the oldest first; returns each with the steps that get tickets now."""
        epoch: list[tuple[CallState, tuple[Step, ...]]] = []
        # A call that waits for a turn keeps its workers from younger ones, so it never starves.
        kept: set[int] = set()
        # Nor may one come between hooks of a call that nest, of which the last ones get their tickets later.
        due: set[int] = set()
        begun: set[int] = set()

        def note(call: CallState) -> None:
            if call.later:
                kept.update(call.enclosed)
                due.update(*(step.workers for step in call.later))

        for call in self._running.values():
            note(call)
        restored = self.alive

        def begin(call: CallState) -> bool:
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
            begun.update(call.workers)
            epoch.append((call, self._begin(call)))
            note(call)
            return True

        self._ready.visit(begin)
        return epoch

    def _begin(self, call: CallState) -> tuple[Step, ...]:
        """Begin a call, without the parts that workers would have in its hooks which will join again.

        Returns the steps that get tickets now.
        """
        if not call.workers <= self._alive:
            call.steps = self._living(call.steps)
        now, call.later = _parted(call) if self._has_late_hooks else (call.steps, ())
        self._ready.remove(call.number)
        self._running[call.number] = call
        for worker in call.mains:
            self._mains[worker] += 1
        return now

    def _living(self, steps: Iterable[Step]) -> tuple[Step, ...]:
        present = [replace(step, workers=step.workers & self._alive) for step in steps]
        return tuple(step for step in present if step.workers)

    def _late_steps(self) -> list[tuple[CallState, Step]]:
        """Return the steps of calls of which all others have ended; calls without any are at their end."""
        found = []
        due, self._due = self._due, []
        for number in due:
            call = self._running[number]
            later = () if call.is_answered else self._living(call.later)
            call.later = ()
            found += [(call, step) for step in later]
            if not later:
                self._end(call)
        return found

    def _give(self, call: CallState, step: Step, now_s: float) -> None:
        """Give a ticket to a step."""
        number, self._next = self._next, self._next + 1
        place = (number, call.number, call.name, set(step.workers), now_s)
        given = Step(step.kind, step.workers, step.work, step.expected_s, *place)
        self._tickets[number] = given
        call.open.add(number)
        self._outputs += [(worker, given) for worker in sorted(step.workers)]

    def _fail(self, call: CallState, reason: str) -> None:
        """Answer a call that has tickets, and abort all of them."""
        if call.is_answered:
            return
        self._answer(call, reason)
        for number in sorted(call.open):
            for worker in sorted(self._tickets[number].missing):
                self._outputs.append((worker, Abort(number, reason)))

    def _answer(self, call: CallState, reason: str | None = None) -> None:
        call.is_answered, call.reason = True, reason
        self._outputs.append(call)

    def _end_if_complete(self, one: Step) -> None:
        if one.missing or one.ticket not in self._tickets:
            return
        del self._tickets[one.ticket]
        call = self._running[one.call]
        call.open.discard(one.ticket)
        if call.open:
            return
        if call.later and not call.is_answered:
            self._due.append(call.number)
        else:
            self._end(call)

    def _end(self, call: CallState) -> None:
        del self._running[call.number]
        for worker in call.mains:
            self._mains[worker] -= 1
        if not call.is_answered:
            self._answer(call)


def _parted(call: CallState) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return the steps of a call that get tickets when it begins, and those that get them when these have ended."""
    mains = call.mains
    for place, step in enumerate(call.steps):
        if mains and step.kind is Kind.POST and not step.workers <= mains:
            return call.steps[:place], call.steps[place:]
    return call.steps, ()
