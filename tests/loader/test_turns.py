"""Batches of several workers after a switch: none of the product before, and those of the new one in their order."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from softs_fast.loader.product.subscription import MAX_PRODUCTS
from softs_fast.loader.turns import CollateTagged, FreshBatches, Tagged, Turns


class Stream:
    """Samples of worker `worker`: (product, number in its stream), switched by the test."""

    def __init__(self, worker: int, n_workers: int, n_rows: int) -> None:
        self.wanted = "1"
        self.product = ""
        self.positions: dict[str, int] = {}
        self._place = (worker, n_workers, n_rows)

    def give_back(self, product: str, n: int) -> None:
        self.positions[product] -= n

    def __iter__(self) -> Iterator[Any]:
        worker, n_workers, n_rows = self._place
        while True:
            product = self.product = self.wanted
            i = self.positions.get(product, 0)
            self.positions[product] = i + 1
            yield product, (i // n_rows * n_workers + worker) * n_rows + i % n_rows


def tagged_batches(stream: Any, n_rows: int, worker: int, n_workers: int, before_each: Any) -> Iterator[Any]:
    turns = Turns(iter(stream), lambda: stream, n_rows, worker, n_workers)
    collate = CollateTagged(list, has_batches=True)
    while True:
        items = []
        for _ in range(n_rows):
            before_each()
            items.append(next(turns))
        yield collate(items)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_rows", [1, 3])
@pytest.mark.parametrize("returns", [False, True])
def test_batches_of_workers_that_switch_at_any_item(seed: int, n_rows: int, returns: bool) -> None:
    chance = random.Random(seed)
    n_workers, newest = 3, "1"
    streams = [Stream(worker, n_workers, n_rows) for worker in range(n_workers)]

    def batches_of(worker: int) -> Iterator[Tagged]:
        def before_each() -> None:
            # A worker sees a switch late, and at any item.
            if chance.random() < 0.3:
                streams[worker].wanted = newest

        return tagged_batches(streams[worker], n_rows, worker, n_workers, before_each)

    def loader() -> Iterator[Tagged]:
        workers = [batches_of(worker) for worker in range(n_workers)]
        while True:
            for batches in workers:
                yield next(batches)

    fresh = FreshBatches(loader(), lambda: newest, n_workers, ordered=True, returns=returns)
    turns = dict.fromkeys(map(str, range(40)), 0)
    for switch in range(2, 32):
        for _ in range(chance.randrange(6)):
            first = turns[newest] * n_rows
            assert next(fresh) == [(newest, first + i) for i in range(n_rows)]
            turns[newest] += 1
        newest = str(chance.randrange(1, 4) if returns else switch)


def test_without_order_batches_come_as_they_come() -> None:
    tagged = [
        Tagged("1", 0, "a"),
        Tagged("1", 2, "b"),
        Tagged("2", 1, "c"),
        Tagged("1", 3, "d"),
        Tagged("", 0, "e"),
        Tagged("2", 0, "f"),
    ]
    newest = "1"
    fresh = FreshBatches(iter(tagged), lambda: newest, 2, ordered=False, returns=True)
    assert [next(fresh), next(fresh)] == ["a", "b"]
    newest = "2"
    assert [next(fresh), next(fresh)] == ["c", "f"]


def test_a_worker_that_has_forgotten_a_product_keeps_nobody_waiting() -> None:
    stream: Any = Stream(0, 2, 1)
    batches = tagged_batches(stream, 1, 0, 2, lambda: None)
    assert [next(batches).turn, next(batches).turn] == [0, 2]
    for number in range(MAX_PRODUCTS):
        stream.wanted = f"other {number}"
        next(batches)
    stream.wanted = "1"
    assert next(batches).turn == 0, "it was left longest ago"

    tagged = [Tagged("1", turn, turn) for turn in (0, 1, 2, 3, 0, 5, 2, 7)]
    fresh = FreshBatches(iter(tagged), lambda: "1", 2, ordered=True, returns=True)
    assert [next(fresh) for _ in range(6)] == [0, 1, 2, 3, 0, 2]


def test_items_without_batches() -> None:
    assert CollateTagged(str, has_batches=False)(Tagged("3", 4, 5)) == ("3", 4, "5")
