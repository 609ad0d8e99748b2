"""The connections of a master to workers that launchers start: greetings, and successors of those that have left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ... import _core
from ...errors import FlowError
from ..link.events import Joined, Left, LinkEvent, Published, Received
from ..link.messages import Declared, Message, Refused
from ..link.seats import Seated, Seats, worker_of
from ..link.stream import MasterStream

__all__ = ["HostLink"]

logger = logging.getLogger(__name__)


class HostLink(MasterStream):
    """A master's end by the numbers of workers, of which each may have one process after the other.

    A process that was given up may still be connected: what it sends is dropped. A process that joins with the number of
    another one waits until that one has left; before the flow has begun it is refused.

    Args:
        native: Native end of all processes, by their seats.
        seats: Seats of the processes, which say which of them are workers.
        note: Function that is told of each event before `receive` returns it.

    Attributes:
        seats: Seats of the processes.
        greeting: Message that each worker gets when it joins.
    """

    def __init__(self, native: _core.FlowServer, seats: Seats, note: Callable[[LinkEvent], None]) -> None:
        super().__init__(native)
        self.greeting = Declared(())
        self.seats = seats
        self._note = note
        self._again: list[LinkEvent] = []
        self._has_begun = False

    def begin(self) -> None:
        """All have begun: `receive` reports once more which have joined, and processes with their numbers wait now."""
        self._has_begun = True
        self._again = [Joined(worker, one.pid, one.host) for worker, one in self.seats.held.items()]

    def send(self, worker: int, message: Message) -> None:
        """As `MasterStream.send`."""
        seat = self.seats.seat(worker)
        if seat is not None:
            with _named(worker, seat):
                super().send(seat, message)

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """As `MasterStream.receive`."""
        events, self._again = self._again, []
        if not events:
            for event in super().receive(timeout_s):
                events += self._events(event)
        for one in events:
            self._note(one)
        return events

    def ask(self, worker: int, what: str, timeout_s: float) -> Published:
        """As `MasterStream.ask`.

        Raises:
            FlowError: see there.
        """
        seat = self.seats.seat(worker)
        if seat is None:
            raise FlowError(f"worker {worker} does not answer {what!r}: it has left")
        with _named(worker, seat):
            return super().ask(seat, what, timeout_s)

    def give_up(self, worker: int, reason: str) -> None:
        """Take nothing more of the process of a worker, and tell it so: it begins anew, or ends, when it reads that."""
        one = self.seats.give_up(worker)
        if one is not None:
            super().send(one.seat, Refused(reason))
            self._again += self._follow(worker)

    def _events(self, event: LinkEvent) -> list[LinkEvent]:
        seat, worker = event.worker, worker_of(event.worker)
        match event:
            case Joined(pid=pid, host=host):
                return self._join(Seated(seat, pid, host))
            case Left(reason=reason):
                if not self.seats.leave(seat):
                    return []
                return [Left(worker, reason), *self._follow(worker)]
            case Received(message=message):
                return [Received(worker, message)] if self.seats.holds(seat) else []

    def _join(self, one: Seated) -> list[LinkEvent]:
        why = self.seats.join(one, may_wait=self._has_begun)
        if why:
            logger.warning("%s is not taken: %s", one, why)
            super().send(one.seat, Refused(why))
            return []
        if not self.seats.holds(one.seat):
            logger.warning("%s waits: another process is worker %d, until it has left", one, one.worker)
            return []
        return self._greet(one)

    def _follow(self, worker: int) -> list[LinkEvent]:
        one = self.seats.follow(worker)
        return self._greet(one) if one is not None else []

    def _greet(self, one: Seated) -> list[LinkEvent]:
        super().send(one.seat, self.greeting)
        return [Joined(one.worker, one.pid, one.host)]


@contextmanager
def _named(worker: int, seat: int) -> Iterator[None]:
    """Have errors name a worker by its own number."""
    try:
        yield
    except FlowError as error:
        raise FlowError(str(error).replace(f"worker {seat}", f"worker {worker}")) from error
