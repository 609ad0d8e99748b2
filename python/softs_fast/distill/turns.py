"""Batches on their way from a DataLoader's workers: of which model each is, and whose turn it is.

torch asks its workers for batches ahead, and takes them in turns. After a switch some of them are of the model before, more from
one worker than from another. Each batch says what it is, so that those can be dropped and the others come in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..stream import Stream
from .model import parse_product

__all__ = ["CollateTagged", "FreshBatches", "Tagged", "Turns"]


class Tagged(NamedTuple):
    """An item, or a batch of items, and where it belongs.

    Attributes:
        generation: of the model whose sample it is.
        turn: which batch of that generation, counted over all workers.
        content: the item.
    """

    generation: int
    turn: int
    content: Any


class Turns:
    """Tags the items of one worker so that each of its batches has items of one generation.

    Where a generation ends within a batch, that batch is filled up with an item that has been seen, for it will be dropped.

    Args:
        items: samples, or what stands for the rows of a batch.
        stream: returns the stream of the items, once the first one has been taken.
        n_rows: items of a batch.
        worker: which worker this is.
        n_workers: how many there are.
    """

    def __init__(
        self, items: Iterator[Any], stream: Callable[[], Stream], n_rows: int, worker: int, n_workers: int
    ) -> None:
        self._items = items
        self._find_stream = stream
        self._stream: Stream | None = None
        self._n_rows = n_rows
        self._worker = worker
        self._n_workers = n_workers
        self._product = ""
        self._generation = 0
        # Items of this generation that were handed out.
        self._n_items = 0
        self._kept: Tagged | None = None

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> Tagged:
        if self._kept is not None:
            if self._n_items % self._n_rows:
                self._n_items += 1
                return Tagged(self._generation, self._turn(), self._kept.content)
            kept, self._kept = self._kept, None
            self._generation, self._n_items = kept.generation, 1
            return kept
        content = next(self._items)
        if self._stream is None:
            self._stream = self._find_stream()
        if self._stream.product != self._product:
            self._product = self._stream.product
            named = parse_product(self._product)
            assert named is not None, self._product
            if self._n_items % self._n_rows:
                self._kept = Tagged(named.number, self._worker, content)
                return next(self)
            self._generation, self._n_items = named.number, 0
        self._n_items += 1
        return Tagged(self._generation, self._turn(), content)

    def _turn(self) -> int:
        """Return the turn of the item that was counted last."""
        return (self._n_items - 1) // self._n_rows * self._n_workers + self._worker


class CollateTagged:
    """Makes a tagged batch of tagged items.

    Args:
        collate_fn: makes a batch of items; of one item if there are no batches.
        has_batches: whether there are.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], has_batches: bool) -> None:
        self.collate_fn = collate_fn
        self._has_batches = has_batches

    def __call__(self, items: Any) -> Tagged:
        """Return the batch."""
        if not self._has_batches:
            return items._replace(content=self.collate_fn(items.content))  # type: ignore[no-any-return]
        first = items[0]
        return Tagged(first.generation, first.turn, self.collate_fn([item.content for item in items]))


class FreshBatches:
    """The batches of the newest generation.

    Args:
        batches: tagged ones, of any generation.
        newest: returns the newest generation.
        ordered: hand them out by their turns.
    """

    def __init__(self, batches: Iterator[Tagged], newest: Callable[[], int], ordered: bool) -> None:
        self._batches = batches
        self._newest = newest
        self._ordered = ordered
        self._generation = 0
        self._next_turn = 0
        self._early: dict[int, Any] = {}

    def __iter__(self) -> FreshBatches:
        return self

    def __next__(self) -> Any:
        while True:
            batch = self._early.pop(self._next_turn, None)
            if batch is None:
                tagged = next(self._batches)
                generation = self._newest()
                if tagged.generation != generation:
                    continue
                if not self._ordered:
                    return tagged.content
                if generation != self._generation:
                    self._generation, self._next_turn = generation, 0
                    self._early.clear()
                self._early[tagged.turn] = tagged.content
            elif self._generation == self._newest():
                self._next_turn += 1
                return batch
