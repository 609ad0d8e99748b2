"""The iterator of a loader: it ends after an epoch, and counts what it hands out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from .stats import StatsRecorder

__all__ = ["BatchIterator"]


class BatchIterator:
    """Hands out the batches of another iterator, for one epoch or for ever. An exception does not end it.

    Args:
        batches: where they come from; endless.
        n_rows: samples per batch.
        n_batches: batches of an epoch; None: it does not end.
        stats: counts the batches.
        move: called with each batch when it is handed out; None: nothing.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        n_rows: int,
        n_batches: int | None,
        stats: StatsRecorder,
        move: Callable[[Any], Any] | None = None,
    ) -> None:
        self._batches = batches
        self._n_rows = n_rows
        self._n_left = float("inf") if n_batches is None else n_batches
        self._stats = stats
        self._move = move
        self._returned_at: float | None = None

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Any:
        if self._n_left == 0:
            raise StopIteration
        requested_at = time.perf_counter()
        batch = next(self._batches)
        if self._move is not None:
            batch = self._move(batch)
        returned_at = time.perf_counter()
        working_s = 0.0 if self._returned_at is None else requested_at - self._returned_at
        self._stats.add(self._n_rows, returned_at - requested_at, working_s)
        self._returned_at = returned_at
        self._n_left -= 1
        return batch
