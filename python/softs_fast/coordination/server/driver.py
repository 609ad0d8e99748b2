"""Gives events to the machine of a job, and does what it wants done, in that order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Protocol

from ...durable import Log as DurableLog
from ...errors import ConfigError, WireError
from ..job.events import Close, Event, Gone, Log, Output, Persist, Received, Send, Tick
from ..job.job import Job
from ..job.messages import Fence, Follow, FromWorker, Table, ToWorker
from ..job.status import Status
from ..wire.formats import RECORDS, TO_WORKER
from .keys import Keys

__all__ = ["LOGGER", "Connection", "Driver"]

#: The logger of a coordinator that is given none.
LOGGER = logging.getLogger("softs_fast.coordination")


class Connection(Protocol):
    """The way to one worker."""

    def send(self, message: ToWorker, data: bytes) -> None:
        """Send a message, which is `data` on the wire; never waits."""

    def finish(self) -> None:
        """End the connection after what was sent on it."""


class Driver:
    """Owns the machine of a job, in one event loop.

    Args:
        machine: State machine of the job.
        state_file: Log to which records are written; None: a restart begins a new job.
        logger: Logger of what happens.

    Attributes:
        keys: Store of the present epoch, with its table.
        failure: Future with the exception that ends this coordinator: a defect of the machine, or a state file that
            cannot be written.
        changed: Event that is set when the status may be another one; each change makes a new one.
    """

    def __init__(self, machine: Job, state_file: DurableLog | None, logger: logging.Logger = LOGGER) -> None:
        self._logger = logger
        self.keys = Keys()
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self._machine = machine
        self._file = state_file
        self._numbers = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.changed = asyncio.Event()
        self._encoded: tuple[ToWorker, bytes] | None = None
        self.handle(Tick())

    def connect(self, connection: Connection) -> int:
        """Return the number of a new connection; what is sent on it goes to `connection`."""
        number = next(self._numbers)
        self._connections[number] = connection
        return number

    def receive(self, number: int, message: FromWorker, identity: str | None) -> None:
        """Take a message of a connection; one that is closed is not listened to."""
        if number in self._connections:
            self.handle(Received(number, message, identity))

    def gone(self, number: int) -> None:
        """Note that a connection has ended."""
        self._connections.pop(number, None)
        self.handle(Gone(number))

    def handle(self, event: Event) -> list[str]:
        """Take an event and do what follows from it; return what was logged.

        Raises:
            ConfigError: an administrator asks for what cannot be; nothing has changed.
        """
        if self.failure.done():
            return []
        try:
            outputs = self._machine.handle(self._loop.time(), event)
            self._do(outputs)
            if self._file is not None and self._file.needs_compacting:
                self._file.replace([RECORDS.encode(record) for record in self._machine.records()])
            self._set_timer()
        except ConfigError:
            raise
        except Exception as error:
            self.failure.set_exception(error)
            return []
        if outputs or not isinstance(event, Tick):
            self.changed.set()
            self.changed = asyncio.Event()
        return [output.text for output in outputs if isinstance(output, Log)]

    def status(self) -> Status:
        """Return what the job does, and what it waits for."""
        return self._machine.status(self._loop.time())

    def close(self) -> None:
        """Do nothing any more."""
        if not self.failure.done():
            self.failure.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.keys.close()

    def _do(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Send(number, message):
                    self._note(message)
                    if number in self._connections:
                        self._connections[number].send(message, self._encode(message))
                case Close(number):
                    if number in self._connections:
                        self._connections.pop(number).finish()
                case Persist(record):
                    if self._file is not None:
                        self._file.append(RECORDS.encode(record))
                case Log(text, is_warning):
                    self._logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def _note(self, message: ToWorker) -> None:
        """Keep the store of the epoch that is open."""
        match message:
            case Table():
                self.keys.open(message)
            case Follow():
                self.keys.admit(message)
            case Fence():
                self.keys.fence(message)

    def _encode(self, message: ToWorker) -> bytes:
        """Encode a message; one that goes to many workers is the same object, and is encoded once."""
        if self._encoded is None or self._encoded[0] is not message:
            try:
                self._encoded = message, TO_WORKER.encode(message)
            except WireError as error:
                raise AssertionError(f"the machine wants to send what no message may be: {error}") from error
        return self._encoded[1]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._machine.next_wake_s()
        self._timer = None if due_s is None else self._loop.call_at(due_s, self.handle, Tick())
