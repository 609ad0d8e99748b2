"""The iterator of a loader: it ends after an epoch, and counts what it hands out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from .stats import IteratorCounts

__all__ = ["BatchIterator"]


class BatchIterator:
    """Hands out the batches of another iterator, for one epoch or for ever. An exception does not end it.

    Args:
        batches: Iterator of the batches; endless.
        n_batches: Batches of an epoch; None: it does not end.
        counts: Counts of the batches that this iterator hands out.
        move: Function called with each batch when it is handed out, which returns the batch to hand out; or None.
        epoch: Object that is told of the first batch, the last one and the end, see `reported_epoch`; or None.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        n_batches: int | None,
        counts: IteratorCounts,
        move: Callable[[Any], Any] | None = None,
        epoch: Any = None,
    ) -> None:
        self._batches = batches
        self._n_batches = n_batches
        self._counts = counts
        self._move = move
        self._epoch = epoch

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        counts = self._counts
        if counts.n_batches == self._n_batches:
            if self._epoch is not None:
                self._epoch.end()
            raise StopIteration
        requested_at = perf_counter()
        if not counts.began_at:
            counts.began_at = requested_at
        try:
            batch = next(self._batches)
            if self._move is not None:
                batch = self._move(batch)
        finally:
            counts.returned_at = returned_at = perf_counter()
            counts.waiting_s += returned_at - requested_at
        counts.n_batches += 1
        if self._epoch is not None:
            if counts.n_batches == 1:
                self._epoch.begin()
            self._epoch.end_of_dataloader = counts.n_batches == self._n_batches
        return batch
