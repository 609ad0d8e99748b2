"""What a master and a worker need of the connection between them, and what the master's end receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .messages import Message

__all__ = ["Joined", "Left", "LinkEvent", "MasterLink", "Published", "Received", "WorkerLink"]


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker has connected; the master can send to it from now on.

    Attributes:
        worker: Number of the worker.
        pid: Process id of the worker, as the worker says.
        host: Host of the worker, as the worker says.
    """

    worker: int
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class Received:
    """A worker has sent a message."""

    worker: int
    message: Message


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone; everything that it sent before was received. Another one may have its number now.

    Attributes:
        worker: Number of the worker.
        reason: Text that says how the worker left.
    """

    worker: int
    reason: str


LinkEvent = Joined | Received | Left


@dataclass(frozen=True, slots=True)
class Published:
    """What a worker has published.

    Attributes:
        value: Value that was published last.
        age_s: Seconds from its publication to the answer, by the clock of the worker.
    """

    value: bytes
    age_s: float


class MasterLink(Protocol):
    """The master's end: messages to and from all workers, in order for each."""

    def send(self, worker: int, message: Message) -> None:
        """Send a message; one to a worker that has left is dropped, and `receive` reports that."""

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """Return what has happened, as soon as something has, or nothing when the time is over.

        Raises:
            WireError: a worker has sent what is no message. Nothing that arrived before or after it is lost.
        """

    def ask(self, worker: int, what: str, timeout_s: float) -> Published:
        """Return what a worker has published under a name, also while its Python code is busy.

        Raises:
            FlowError: it has published nothing of that name, has left, or does not answer in time.
        """

    def close(self) -> None:
        """End all connections; idempotent."""


class WorkerLink(Protocol):
    """A worker's end."""

    def publish(self, what: str, value: bytes) -> None:
        """Have a question of the master answered with a value from now on."""

    def stack_pipe(self) -> int:
        """Open a pipe for `answer_stack`; see `WorkerStream`."""

    def answer_stack(self, what: str, signal: int) -> None:
        """Answer a question with what the handler of a signal writes in this thread; see `WorkerStream`."""

    def send(self, message: Message) -> None:
        """Send a message; any thread may call.

        Raises:
            PeerLost: the master has ended.
        """

    def receive(self, timeout_s: float | None) -> list[Message]:
        """Return messages, as soon as there are some, or nothing when the time is over; None: without end.

        Raises:
            PeerLost: the master has ended, or this end was closed, perhaps by another thread.
        """

    def close(self) -> None:
        """End the connection, and a `receive` of another thread; idempotent."""
