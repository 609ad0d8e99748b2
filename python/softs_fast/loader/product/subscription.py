"""Keeps a client at the product that is wanted."""

from __future__ import annotations

import multiprocessing.util
import threading
from dataclasses import dataclass
from typing import Any

from ...errors import SoftsError
from ...market import Client
from ...process import renewed_in_forks
from .source import ProductSource

__all__ = ["MAX_PRODUCTS", "Stride", "Subscription", "Wanted", "remember"]

#: How many products have a position; the position of the product that was left longest ago is removed first.
MAX_PRODUCTS = 64


@dataclass(frozen=True)
class Stride:
    """Which samples of an ordered stream one process takes: sample i is number start + i // run * stride + i % run."""

    start: int = 0
    run: int = 1
    stride: int = 1


@dataclass(frozen=True)
class Wanted:
    """A product that was wanted, and its version (`ProductSource.version`)."""

    version: int
    product: str


class Subscription:
    """Has a client order the product that is wanted; shared by the iterators of a process.

    Args:
        client: orders samples.
        source: names the product that is wanted.
        watches: start a thread that sleeps until another product is wanted, and follows it at once. A process needs it
            where another process changes the product.
    """

    def __init__(self, client: Client, source: ProductSource, *, watches: bool) -> None:
        self._client = client
        self._source = source
        #: Samples that were ordered when the client went to another place last: those that are still wanted, and others.
        self.last_seek = (0, 0)
        # Those of the iterator that entered a product last.
        self._positions: dict[str, int] = {}
        self._stride: Stride | None = None
        #: What the client follows; None: it has left a product and follows none.
        self._followed: str | None = None
        # Held while a product is read and followed, so the last one to hold it follows the newest.
        self._lock: threading.Lock
        renewed_in_forks(self, "_lock")
        self._watcher = _Watcher(self) if watches else None

    def update(self) -> Wanted:
        """Have the client order the product that is wanted now, and end the waits for another one; return it.

        Raises:
            SegmentError: the client is closed.
        """
        with self._lock:
            wanted = self.wanted()
            if wanted.product != self._followed:
                self._follow(wanted.product, ahead=self._is_in_place(wanted.product))
            return wanted

    def enter(self, positions: dict[str, int], stride: Stride | None) -> Wanted:
        """Begin with the product that is wanted now where it was left, for an iterator that holds no sample of it.

        Args:
            positions: Number of samples of each product that were handed out; the iterator keeps it up to date.
            stride: Stride of the samples to ask for, if the client hands them out in order.

        Returns:
            The product.
        """
        with self._lock:
            wanted = self.wanted()
            product = wanted.product
            self._positions, self._stride = positions, stride
            position = remember(positions, product)
            if stride is not None and not self._is_in_place(product):
                self.last_seek = self._client.seek(product, stride.start, stride.run, stride.stride, position)
            if product != self._followed:
                self._follow(product, ahead=True)
            return wanted

    def wanted(self) -> Wanted:
        """Return what is wanted now."""
        # In this order: what is read after a number is of that version or a later one, and a later one has another
        # number.
        version = self._source.version()
        return Wanted(version, self._source.read())

    def sleep_while(self, wanted: Wanted) -> None:
        """Sleep while this version is wanted; may return early.

        If another version is wanted then, the client leaves the product, in native code that does not wait for the
        interpreter; `update` must follow.
        """
        self._source.sleep_while(wanted.version, wanted.product, self._leave_after)

    def wake(self) -> None:
        """Wake all threads that sleep in `sleep_while`, in all processes."""
        self._source.wake()

    def close(self) -> None:
        """End the thread, if there is one. The client must be closed before, so that no call of it waits for a broker."""
        if self._watcher is not None:
            self._watcher.end()

    def _leave_after(self, product: str, memory: Any, word: int) -> bool:
        is_left = self._client.leave_after(product, memory, word)
        if is_left:
            # Nothing is ordered until a product is followed, even if the same one is wanted again by now.
            with self._lock:
                self._followed = None
        return is_left

    def _follow(self, product: str, *, ahead: bool) -> None:
        self._client.follow(product, ahead=ahead)
        self._followed = product

    def _is_in_place(self, product: str) -> bool:
        """Return whether the next sample of a product that the client would order is the next one to hand out."""
        if self._stride is None:
            return True
        return self._stride == Stride() and self._client.position(product) == self._positions.get(product, 0)


def remember(positions: dict[str, int], product: str) -> int:
    """Return the position of a product, 0 for a new one, as the newest of at most `MAX_PRODUCTS` positions."""
    position = positions[product] = positions.pop(product, 0)
    while len(positions) > MAX_PRODUCTS:
        del positions[next(iter(positions))]
    return position


class _Watcher:
    """A thread that has a client follow each product that becomes wanted."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._is_over = False
        self._thread = threading.Thread(
            target=self._run, args=(subscription.wanted(),), name="softs-watch", daemon=True
        )
        self._thread.start()
        #: Ends the thread, at the latest when the process ends, after clients are closed. Idempotent.
        self.end = multiprocessing.util.Finalize(None, self._end, exitpriority=5)

    def _run(self, wanted: Wanted) -> None:
        subscription = self._subscription
        while not self._is_over:
            # It sleeps on the version that was followed: a change in between, even there and back, is another version.
            subscription.sleep_while(wanted)
            if self._is_over:
                return
            try:
                wanted = subscription.update()
            except SoftsError:
                # The client is closed, or reports the error to the next caller that asks it for samples.
                wanted = subscription.wanted()

    def _end(self) -> None:
        self._is_over = True
        if self._thread is threading.current_thread():
            return
        # The thread may have read the flag just before, and not sleep yet: then this wake-up is lost, and another one
        # is needed.
        while self._thread.is_alive():
            self._subscription.wake()
            self._thread.join(_JOIN_S)


_JOIN_S = 0.01
