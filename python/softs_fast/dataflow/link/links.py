"""What a master and a worker need of the connection between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .control import Published
from .messages import Message

__all__ = ["Joined", "Left", "LinkEvent", "MasterLink", "Received", "WorkerLink"]


@dataclass(frozen=True)
class Joined:
    """A worker has connected.

    Attributes:
        worker: its number.
        pid: its process.
        host: the name of its host.
    """

    worker: int
    pid: int
    host: str


@dataclass(frozen=True)
class Received:
    """A worker has sent a message."""

    worker: int
    message: Message


@dataclass(frozen=True)
class Left:
    """The connection of a worker has ended."""

    worker: int
    reason: str


LinkEvent = Joined | Received | Left


class MasterLink(Protocol):
    """The master's end: messages to and from all workers, in order for each."""

    def send(self, worker: int, message: Message) -> None:
        """Send a message; one to a worker that has left is dropped, and `receive` reports that."""

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        """Return what has happened, as soon as something has, or nothing when the time is over.

        Raises:
            WireError: a worker has sent what is no message. Nothing that arrived before or after it is lost.
        """

    def ask(self, worker: int, what: str, timeout_s: float) -> bytes:
        """Return what a worker has published under a name, also while its Python code is busy.

        Raises:
            FlowError: it has published nothing of that name, has left, or does not answer in time.
        """

    def ask_with_age(self, worker: int, what: str, timeout_s: float) -> Published:
        """As `ask`, with the age of what was published, by the clock of the worker.

        Raises:
            FlowError: see `ask`.
        """

    def close(self) -> None:
        """End all connections; idempotent."""


class WorkerLink(Protocol):
    """A worker's end."""

    def publish(self, what: str, value: bytes) -> None:
        """Have a question of the master answered with a value from now on."""

    def stack_pipe(self) -> int:
        """Open a pipe for `answer_stack`; see `ControlClient`."""

    def answer_stack(self, what: str, signal: int) -> None:
        """Answer a question with what the handler of a signal writes in this thread; see `ControlClient`."""

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
