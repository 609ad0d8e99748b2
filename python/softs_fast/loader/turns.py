"""Batches on their way from a DataLoader: of which product each is, and whose turn it is.

torch asks its workers for batches ahead, and takes them in turns. After a switch some of them are of the product before, more from
one worker than from another. Each batch says what it is, so that those can be dropped and the others come in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from .backlog import Backlog
from .packing import Packed
from .product.subscription import MAX_PRODUCTS
from .readers.copying import collate_rows
from .sample_iterator import Stream

__all__ = ["CollateTagged", "FreshBatches", "Tagged", "Turns", "collate_tagged_rows"]


class Tagged(NamedTuple):
    """An item, or a batch of items, and where it belongs.

    Attributes:
        product: whose sample it is; empty: of two, so that nobody wants it.
        turn: which batch of that product, counted over all workers.
        content: the item.
    """

    product: str
    turn: int
    content: Any


class Turns:
    """Tags the items of one worker so that nobody takes a batch of two products for one.

    Where a product ends within a batch, that batch is filled up with an item that has been seen, for it will be dropped. What it
    took of the stream is given back.

    Args:
        items: samples, or what stands for the rows of a batch.
        stream: returns the stream of the items, once the first one has been taken.
        n_rows: items of a batch; 1 where each item is a batch.
        worker: which worker this is.
        n_workers: how many there are.
        backlog: says when the trainer has use for another batch; None: always.
    """

    def __init__(
        self,
        items: Iterator[Any],
        stream: Callable[[], Stream],
        n_rows: int,
        worker: int,
        n_workers: int,
        backlog: Backlog | None = None,
    ) -> None:
        self._items = items
        self._find_stream = stream
        self._stream: Stream | None = None
        self._n_rows = n_rows
        self._worker = worker
        self._n_workers = n_workers
        self._backlog = backlog
        self._product = ""
        # Items of the batch that is under way, and whether they are of one product.
        self._n_items = 0
        self._is_whole = True
        # Batches of each product that were handed out.
        self._n_batches: dict[str, int] = {}
        self._kept: tuple[str, Any] | None = None

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> Tagged:
        if self._n_items == 0 and self._backlog is not None:
            self._backlog.wait(self._worker)
        product, content = self._kept or self._take()
        if self._n_items and product != self._product:
            if self._is_whole:
                assert self._stream is not None
                self._stream.give_back(self._product, self._n_items)
                self._is_whole, self._kept = False, (product, content)
            self._n_items = (self._n_items + 1) % self._n_rows
            return Tagged("", 0, content)
        self._kept, self._is_whole, self._product = None, True, product
        n_batches = self._n_batches.get(product, 0)
        self._n_items = (self._n_items + 1) % self._n_rows
        if self._n_items == 0:
            _remember(self._n_batches, product, n_batches + 1)
        return Tagged(product, n_batches * self._n_workers + self._worker, content)

    def _take(self) -> tuple[str, Any]:
        content = next(self._items)
        if self._stream is None:
            self._stream = self._find_stream()
        return self._stream.product, content


class CollateTagged:
    """Makes a tagged batch of tagged items; in a worker, one that is packed for its way to the trainer.

    Args:
        collate_fn: makes a batch of items; of one item if there are no batches.
        has_batches: whether there are.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], has_batches: bool) -> None:
        self._collate_fn = collate_fn
        self._has_batches = has_batches

    def __call__(self, items: Any) -> Tagged:
        """Return the batch."""
        # The last one knows whether they are of one product.
        tagged: Tagged = items[-1] if self._has_batches else items
        batch = self._collate_fn([item.content for item in items] if self._has_batches else items.content)
        return _for_trainer(tagged, batch)


def collate_tagged_rows(items: list[Any]) -> Tagged:
    """Return the tagged batch of which `items` are the rows; in a worker, packed for its way to the trainer."""
    tagged: Tagged = collate_rows(items)
    return _for_trainer(tagged, tagged.content)


class FreshBatches:
    """The batches of the product that is wanted.

    Args:
        batches: tagged ones, of any product.
        wanted: returns the product.
        n_workers: how many make them.
        ordered: hand out those of each product by their turns. What was fetched ahead of a product that is wanted no more is kept for
            the time when it is wanted again: nobody else has those samples.
        returns: a product may be wanted again.
        backlog: is told how many batches of each worker wait for their turn.
    """

    def __init__(
        self,
        batches: Iterator[Tagged],
        wanted: Callable[[], str],
        n_workers: int,
        *,
        ordered: bool,
        returns: bool,
        backlog: Backlog | None = None,
    ) -> None:
        self._batches = batches
        self._wanted = wanted
        self._n_workers = n_workers
        self._ordered = ordered
        self._returns = returns
        self._backlog = backlog
        self._lines: dict[str, _Line] = {}

    def __iter__(self) -> FreshBatches:
        return self

    def __del__(self) -> None:
        """Workers that wait here could not end."""
        if self._backlog is not None:
            self._backlog.clear()

    def __next__(self) -> Any:
        while True:
            if self._ordered:
                line = self._line(self._wanted())
                early = line.take()
                if self._backlog is not None:
                    self._backlog.set(line.n_waiting())
                if early is not None:
                    return early.content
            tagged = next(self._batches)
            is_fresh = tagged.product == self._wanted()
            if is_fresh and not self._ordered:
                return tagged.content
            if self._ordered and tagged.product and (is_fresh or self._returns):
                self._line(tagged.product).add(tagged)

    def _line(self, product: str) -> _Line:
        line = self._lines.get(product)
        if line is None:
            line = _Line(self._n_workers)
            if not self._returns:
                self._lines.clear()
            _remember(self._lines, product, line)
        return line


class _Line:
    """The batches of one product, which stand in line until it is their turn."""

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers
        self._next_turn = 0
        self._early: dict[int, Tagged] = {}

    def add(self, batch: Tagged) -> None:
        self._early[batch.turn] = batch

    def n_waiting(self) -> list[int]:
        """Return how many batches of each worker there are."""
        workers = [turn % self._n_workers for turn in self._early]
        return [workers.count(worker) for worker in range(self._n_workers)]

    def take(self) -> Tagged | None:
        turn = self._next_turn
        if turn not in self._early:
            if len({early % self._n_workers for early in self._early}) < self._n_workers:
                return None
            # Each worker has come later than that: one of them has forgotten the product meanwhile, and begun anew.
            turn = min(self._early)
        self._next_turn = turn + 1
        return self._early.pop(turn)


def _for_trainer(tagged: Tagged, batch: Any) -> Tagged:
    return tagged._replace(content=batch if get_worker_info() is None else Packed(batch))


def _remember(known: dict[str, Any], product: str, value: Any) -> None:
    """Set the value of a product; the one that was set longest ago is forgotten."""
    known.pop(product, None)
    known[product] = value
    while len(known) > MAX_PRODUCTS:
        del known[next(iter(known))]
