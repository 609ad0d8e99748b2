"""What the master's end of a stream receives, and what its workers have published."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Message

__all__ = ["Joined", "Left", "LinkEvent", "Published", "Received"]


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
