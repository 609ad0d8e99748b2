"""How an iterator gets its samples: it follows the product, waits, and counts what it hands out."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ..tensors import for_later
from .product.source import ProductSource
from .product.subscription import Stride, Subscription
from .stream_lock import LOST, StreamLock, Taker
from .wait_policy import WaitPolicy

__all__ = ["Reader", "SampleIterator", "Stream"]


class Reader(Taker, Protocol):
    """Makes items of the samples of a client: batches, or samples."""

    #: Samples per item.
    n_rows: int

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots."""

    def begin(self, product_id: str) -> None:
        """Begin to copy the next item, while the caller is busy."""

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Take samples into the rows from `done` on, within timeout_ms for the first; return how many are filled now.

        A number that is not `n_rows` is only compared with `done`: another one means that samples came.
        """

    def take(self) -> Any:
        """Hand out the item; all rows must have been filled."""


class Stream:
    """The samples that one iterator takes from a client.

    Args:
        source: Source that names the product that is wanted.
        subscription: Subscription by which the client orders that product.
        positions: Number of samples of each product that were handed out; kept up to date.
        stride: Stride of the samples to ask for, if the client hands them out in order.
        lock: Lock shared by all iterators that take samples of these streams.
        wait: Policy that decides how long to wait.
        record: Function called with product, position and item before an item is handed out, see `IterationPlan`.
    """

    def __init__(
        self,
        source: ProductSource,
        subscription: Subscription,
        positions: dict[str, int],
        stride: Stride | None,
        lock: StreamLock,
        wait: WaitPolicy,
        record: Callable[[str, int, Any], None] | None = None,
    ) -> None:
        self._source = source
        self._subscription = subscription
        self._positions = positions
        self._stride = stride
        self._lock = lock
        self._wait = wait
        self._record = record
        # An iterator that shares a reader goes on with what the reader has.
        self._wanted = lock.wanted

    def take(self, reader: Reader, *, begins_next: bool) -> Any:
        """Return the next item of a reader, all samples of one version of the product.

        Args:
            reader: Reader that makes the item.
            begins_next: Whether the reader then begins with the next item.
        """
        with self._lock.lock:
            with for_later():
                self._begin(reader)
                while not self._fill(reader):
                    self._switch()
            return self._hand_out(reader, begins_next)[1]

    def take_of(
        self, version: int, reader: Reader, is_over: Callable[[], bool], *, begins_next: bool = False
    ) -> tuple[str, Any] | None:
        """Return the product and the next item of a reader, or None if another version than this one is wanted.

        Also None if `is_over` returns True before the item is complete. `begins_next` is as for `take`.
        """
        with self._lock.lock:
            self._begin(reader)
            if self._wanted is None or self._wanted.version != version or not self._fill(reader, is_over):
                return None
            return self._hand_out(reader, begins_next)

    def restart(self) -> None:
        """Begin again at the position of the product that is wanted."""
        self._wanted = None

    def _begin(self, reader: Reader) -> None:
        lock = self._lock
        if lock.last is not weakref.ref(reader) or lock.wanted is not self._wanted:
            self._resume(reader)
        lock.last = LOST

    def _hand_out(self, reader: Reader, begins_next: bool) -> tuple[str, Any]:
        """Return product and item of a reader that is filled, and count its samples."""
        assert self._wanted is not None
        product = self._wanted.product
        item = reader.take()
        if self._record is not None:
            # Where items are copied to a device, the copy on the host is recorded: the device may be busy for long.
            self._record(product, self._positions[product], getattr(reader, "source", item))
        self._positions[product] += reader.n_rows
        if begins_next:
            with for_later():
                reader.begin(product)
        self._lock.last = weakref.ref(reader)
        return product, item

    def _fill(self, reader: Reader, is_over: Callable[[], bool] | None = None) -> bool:
        """Fill an item; False if another version of the product is wanted meanwhile, or the item is not wanted any more.

        What was taken is dropped then.
        """
        wanted = self._wanted
        if wanted is None:
            return False
        version, product = wanted.version, wanted.product
        current_version, wait = self._source.version, self._wait
        n_rows, fill = reader.n_rows, reader.fill
        wait.restart()
        done = 0
        while True:
            if current_version() != version or (is_over is not None and is_over()):
                # No item has samples of two versions.
                reader.forget()
                return False
            if done == n_rows:
                return True
            before, done = done, fill(product, done, wait.wait_ms)
            if done != before:
                wait.note_samples()
            elif current_version() == version:
                wait.check(product, reader.is_starved)

    def _resume(self, reader: Reader) -> None:
        """Go to the first sample that was not handed out, after another reader or after taking that was not completed."""
        last = self._lock.last()
        if last is not None:
            last.forget()
        # After an error this reader may have samples, too, which are due again.
        reader.forget()
        self._switch()

    def _switch(self) -> None:
        """Begin with the product that is wanted now."""
        self._wanted = self._lock.wanted = self._subscription.enter(self._positions, self._stride)


class SampleIterator:
    """Iterates over the items of a reader for ever. An exception does not end it: the next call goes on.

    Args:
        begin: returns the samples and what makes items of them; called at the first request.
        on_error: called when an exception leaves the iterator; the next request calls `begin` again then.
        check: Called at each request before samples are taken; None: nothing is.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[Stream, Reader]],
        on_error: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._begin = begin
        self._check = check
        self._on_error = on_error
        self._begun: tuple[Stream, Reader] | None = None
        self._returned_at = float("inf")

    def __iter__(self) -> SampleIterator:
        return self

    def __next__(self) -> Any:
        is_busy = time.perf_counter() - self._returned_at >= _BUSY_S
        try:
            if self._check is not None:
                self._check()
            if self._begun is None:
                self._begun = self._begin()
            stream, reader = self._begun
            # Nothing here keeps the item: its memory is free when the caller releases it.
            return stream.take(reader, begins_next=is_busy)
        except Exception:
            if self._on_error is not None:
                self._begun = None
                self._on_error()
            raise
        finally:
            self._returned_at = time.perf_counter()


#: A caller that works for so long between two items has the next one copied meanwhile, seconds.
_BUSY_S = 0.0005
