"""Batches of several workers after a switch: none of the model before, and those of the new one in their order."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from softs_fast.distill.model import product_of
from softs_fast.distill.turns import CollateTagged, FreshBatches, Tagged, Turns


class Stream:
    """Samples of worker `worker`: (generation, number in the stream), switched by the test."""

    def __init__(self, worker: int, n_workers: int, n_rows: int) -> None:
        self.generation = 1
        self.product = ""
        self._place = (worker, n_workers, n_rows)

    def __iter__(self) -> Iterator[Any]:
        worker, n_workers, n_rows = self._place
        generation, i = 0, 0
        while True:
            if generation != self.generation:
                generation, i = self.generation, 0
            self.product = product_of(generation, 0)
            yield generation, (i // n_rows * n_workers + worker) * n_rows + i % n_rows
            i += 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_rows", [1, 3])
def test_batches_of_workers_that_switch_at_any_item(seed: int, n_rows: int) -> None:
    chance = random.Random(seed)
    n_workers, newest = 3, 1
    streams = [Stream(worker, n_workers, n_rows) for worker in range(n_workers)]

    def batches_of(worker: int) -> Iterator[Tagged]:
        stream: Any = streams[worker]
        turns = Turns(iter(stream), lambda: stream, n_rows, worker, n_workers)
        collate = CollateTagged(list, has_batches=True)
        while True:
            items = []
            for _ in range(n_rows):
                # A worker sees a switch late, and at any item.
                if chance.random() < 0.3:
                    stream.generation = newest
                items.append(next(turns))
            assert len({item.generation for item in items}) == 1
            yield collate(items)

    def loader() -> Iterator[Tagged]:
        workers = [batches_of(worker) for worker in range(n_workers)]
        while True:
            for batches in workers:
                yield next(batches)

    fresh = FreshBatches(loader(), lambda: newest, ordered=True)
    for _ in range(30):
        for turn in range(chance.randrange(6)):
            first = turn * n_rows
            assert next(fresh) == [(newest, first + i) for i in range(n_rows)]
        newest += 1


def test_without_order_batches_come_as_they_come() -> None:
    tagged = [Tagged(1, 0, "a"), Tagged(1, 2, "b"), Tagged(2, 1, "c"), Tagged(1, 3, "d"), Tagged(2, 0, "e")]
    newest = 1
    fresh = FreshBatches(iter(tagged), lambda: newest, ordered=False)
    assert [next(fresh), next(fresh)] == ["a", "b"]
    newest = 2
    assert [next(fresh), next(fresh)] == ["c", "e"]


def test_items_without_batches() -> None:
    assert CollateTagged(str, has_batches=False)(Tagged(3, 4, 5)) == (3, 4, "5")
