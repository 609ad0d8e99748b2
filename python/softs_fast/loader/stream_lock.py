"""The lock that the iterators of shared streams take in turns."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ..process import renewed_in_forks
from .product.subscription import Wanted

__all__ = ["LOST", "StreamLock", "Taker"]


class Taker(Protocol):
    """Takes samples from a client, perhaps more than were handed out."""

    def forget(self) -> None:
        """Drop the samples that were not handed out."""


class StreamLock:
    """The state that iterators share which share the streams of a client.

    An iterator holds the lock from the first sample that it takes until it has counted what it hands out. So each
    sample goes to one of them, a batch has samples that follow each other, and the count tells which samples were
    handed out.

    Attributes:
        lock: held by the iterator that takes samples, also while it waits: later iterators want later samples.
        last: refers to the taker that held the lock last, and may have samples that were taken and not handed out;
            `LOST` if no taker has them.
        wanted: the product that was taken under the lock last.
        readers: those that iterators share because they take samples ahead, by a key.
    """

    def __init__(self) -> None:
        self.lock: threading.Lock
        renewed_in_forks(self, "lock")
        self.last: Callable[[], Taker | None] = LOST
        self.wanted: Wanted | None = None
        self.readers: weakref.WeakValueDictionary[object, Any] = weakref.WeakValueDictionary()


def LOST() -> None:
    """Refer to no taker: taking has begun, and was not completed."""
