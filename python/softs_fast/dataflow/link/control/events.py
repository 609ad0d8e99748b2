"""What the two ends of a control stream receive."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ended", "Joined", "Left", "Published", "Received"]


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker has joined; the master can send to it from now on.

    Attributes:
        worker: Number of the worker.
        pid: Process id of the worker, as the worker says.
        host: Host of the worker, as the worker says.
        incarnation: Incarnation of the master that the worker was started for.
    """

    worker: int
    pid: int
    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a worker.

    Attributes:
        worker: its number.
        payload: the bytes that it sent.
    """

    worker: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone; everything that it sent before was received. Another one may have its number now.

    Attributes:
        worker: its number.
        reason: how it left.
    """

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection to the master has ended.

    Attributes:
        reason: how it ended.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """What a worker has published.

    Attributes:
        value: the last value.
        age_s: seconds from its publication to the answer.
    """

    value: bytes
    age_s: float
