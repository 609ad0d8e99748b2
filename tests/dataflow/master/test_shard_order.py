"""The order of elements of several shards: the same whatever arrives when, also after losses and from saves."""

from __future__ import annotations

import random
from itertools import zip_longest

import pytest

from softs_fast.dataflow.master.rows.saved import NEW, SavedGroup
from softs_fast.dataflow.master.shards import Arrived, ShardOrder
from softs_fast.errors import FlowError


def expected(lengths: list[int]) -> list[tuple[int, int]]:
    """Element 0 of each shard, then element 1 of each, by another way."""
    rounds = zip_longest(*([(shard, i) for i in range(n)] for shard, n in enumerate(lengths)))
    return [one for row in rounds for one in row if one is not None]


def value(shard: int, number: int, process: int = 0) -> Arrived:
    return Arrived(((shard, number, process),), 8, {})


class Heads:
    """Heads of shards in virtual time: each answers the oldest request that it has, when it is chosen."""

    def __init__(self, lengths: list[int], rng: random.Random) -> None:
        self.lengths, self.rng = lengths, rng
        self.requests: dict[int, list[list[int]]] = {shard: [] for shard in range(len(lengths))}
        self.away: set[int] = set()
        #: How many processes each head has had: what one has read goes with it.
        self.processes = [0] * len(lengths)

    def ask(self, order: ShardOrder) -> None:
        for shard, numbers in order.ask(self.away).items():
            assert shard not in self.away
            at = self.rng.randint(1, len(numbers))
            self.requests[shard] += [one for one in (numbers[:at], numbers[at:]) if one]

    def act(self, order: ShardOrder) -> None:
        """Answer a request, or end a head, or have one that has ended begin again."""
        shard = self.rng.randrange(len(self.lengths))
        if shard in self.away:
            self.away.discard(shard)
        elif not self.rng.randrange(15):
            self.away.add(shard)
            self.processes[shard] += 1
            self.requests[shard].clear()
            order.lose(shard)
        elif self.requests[shard]:
            for number in self.requests[shard].pop(0):
                if number >= self.lengths[shard]:
                    order.ended(shard, self.lengths[shard], f"shard {shard}")
                    break
                order.arrived(shard, number, value(shard, number, self.processes[shard]))


@pytest.mark.parametrize("seed", range(60))
def test_elements_come_in_one_order_whatever_the_timing_and_each_once(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(0, 12) for _ in range(rng.randint(1, 4))]
    taken = [0] * len(lengths)
    order, heads, found = ShardOrder(taken), Heads(lengths, rng), []
    # What was read since the save, and how many elements had become rows by then.
    since: list[tuple[int, int]] = []
    n_saved = 0
    for _ in range(1000):
        n = rng.randint(1, 3)
        order.plan(n + rng.randint(0, 5))
        heads.ask(order)
        heads.act(order)
        if order.has(n):
            for _ in range(n):
                one = order.take()
                if one is None:
                    assert found == expected(lengths)
                    assert taken == lengths
                    return
                assert one.value == value(one.shard, one.number, heads.processes[one.shard])
                found.append((one.shard, one.number))
                if one.again is None:
                    since.append(found[-1])
        if not rng.randrange(40):
            n_saved, since = len(found), [(one.shard, one.number) for one in order.again]
        if not rng.randrange(60):
            # All processes begin anew. What was read since the save comes again, in its order, before the rest.
            del found[n_saved:]
            order, heads = ShardOrder(taken), Heads(lengths, rng)
            for key in since:
                order.issue_again(*key, SavedGroup("train", NEW, ()))
    pytest.fail("the end was not met")


def test_nothing_is_there_before_the_next_element_is() -> None:
    order = ShardOrder([0, 0])
    order.plan(4)
    assert order.ask() == {0: [0, 1], 1: [0, 1]}
    assert order.ask() == {}
    for number in (0, 1):
        order.arrived(1, number, value(1, number))
    assert not order.has(1)
    order.arrived(0, 0, value(0, 0))
    assert order.has(2)
    assert not order.has(3)


def test_an_error_is_met_when_its_element_is_the_next_and_stays() -> None:
    order = ShardOrder([0, 0])
    order.plan(4)
    order.ask()
    order.arrived(0, 0, value(0, 0))
    order.failed(1, 0, FlowError("broken"))
    assert order.has(3)
    assert order.take() is not None
    for _ in range(2):
        with pytest.raises(FlowError, match="broken"):
            order.take()
    assert order.taken == [1, 0]


def test_a_shard_that_is_shorter_than_it_was_is_an_error() -> None:
    order = ShardOrder([4, 4])
    order.plan(2)
    order.ask()
    order.ended(0, 3, "shard 0 of 2")
    with pytest.raises(FlowError, match="shard 0 of 2 ends after 3 elements, and 4 of it were read before"):
        order.take()
    order = ShardOrder([4])
    order.issue_again(0, 2, SavedGroup("train", 6, ()))
    order.plan(1)
    order.ended(0, 2, "shard 0 of 1")
    with pytest.raises(FlowError, match="ends after 2 elements, and 4 of it were read before"):
        order.take()
