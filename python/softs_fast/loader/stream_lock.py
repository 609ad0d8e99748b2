"""Who takes samples from a client: iterators of ordered streams do it in turns."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from .fork_locks import renewed_in_forks

__all__ = ["LOST", "Taker", "Turn"]


class Taker(Protocol):
    """Takes samples, perhaps more than were handed out."""

    def forget(self) -> None:
        """Drop what was not handed out."""


class Turn:
    """What iterators that share the streams of a client know of each other.

    Whoever has the turn holds the lock from the first sample that it takes until it has counted what it hands out. So each
    sample goes to one of them, a batch has samples that follow each other, and the count says which were handed out.

    Attributes:
        lock: held by whoever has the turn, also while it waits: those who come later want later samples.
        last: refers to who had the turn, and may have what was taken and not handed out; `LOST` if nobody has that.
        product: what was taken in that turn.
        readers: those that iterators share because they take samples ahead, by whatever tells them apart.
    """

    def __init__(self) -> None:
        self.lock: threading.Lock
        renewed_in_forks(self, "lock")
        self.last: Callable[[], Taker | None] = LOST
        self.product = ""
        self.readers: weakref.WeakValueDictionary[object, Any] = weakref.WeakValueDictionary()


def LOST() -> None:
    """Refer to nobody: a turn has begun, and not come to its end."""
