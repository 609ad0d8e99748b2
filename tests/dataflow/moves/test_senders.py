"""Senders of rows: the bound is exact, and the busiest sender is at most one row above it."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.dataflow.moves.senders import HolderSet, round_shares, shares_of

Instance = tuple[list[HolderSet], list[list[int]]]


def naive_bound(sets: list[HolderSet], demands: list[int]) -> Fraction:
    """The largest quotient of all groups of holders."""
    holders = sorted({one for holders in sets for one in holders})
    return max(
        Fraction(sum(d for one, d in zip(sets, demands, strict=True) if set(one) <= set(group)), n)
        for n in range(1, len(holders) + 1)
        for group in combinations(holders, n)
    )


def loads_of(sets: list[HolderSet], sizes: list[list[int]]) -> tuple[Fraction, dict[int, int]]:
    demands = [sum(one) for one in sizes]
    shares = shares_of(sets, demands)
    for mine, holders, demand in zip(shares.of_set, sets, demands, strict=True):
        assert set(mine) <= set(holders)
        assert sum(mine.values()) == demand
    sums: dict[int, Fraction] = {}
    for mine in shares.of_set:
        for holder, amount in mine.items():
            assert amount > 0
            sums[holder] = sums.get(holder, Fraction(0)) + amount
    assert all(amount <= shares.bound for amount in sums.values())
    senders = round_shares(shares, sets, [np.array(one, np.int64) for one in sizes])
    loads: dict[int, int] = {}
    for holders, found, mine in zip(sets, senders, sizes, strict=True):
        assert len(found) == len(mine)
        for sender, size in zip(found.tolist(), mine, strict=True):
            assert sender in holders
            loads[sender] = loads.get(sender, 0) + size
    return shares.bound, loads


def random_instance(chance: random.Random) -> Instance:
    n_holders = chance.randrange(1, 9)
    wanted = chance.randrange(1, 12)
    sets = {
        tuple(sorted(chance.sample(range(n_holders), chance.randrange(1, min(n_holders, 5) + 1))))
        for _ in range(wanted)
    }
    largest = chance.choice([1, 10, 1000, 1 << 30])
    sizes = [
        [chance.randrange(0, largest + 1) for _ in range(chance.randrange(0, chance.choice([2, 6, 60])))]
        for _ in sets
    ]
    return list(sets), sizes


@pytest.mark.parametrize("block", range(3))
def test_the_busiest_sender_is_at_most_a_row_above_the_bound(block: int) -> None:
    """600 random instances."""
    chance = random.Random(block)
    for _ in range(200):
        sets, sizes = random_instance(chance)
        bound, loads = loads_of(sets, sizes)
        assert bound == naive_bound(sets, [sum(one) for one in sizes])
        largest = max((size for one in sizes for size in one), default=0)
        assert max(loads.values(), default=0) <= bound + largest


def test_no_plan_is_below_the_bound() -> None:
    for seed in range(40):
        check_beside_all_plans(random.Random(1000 + seed))


def check_beside_all_plans(chance: random.Random) -> None:
    sets = [tuple(sorted(chance.sample(range(3), chance.randrange(1, 4)))) for _ in range(3)]
    sets = list(dict.fromkeys(sets))
    sizes = [[chance.randrange(1, 9) for _ in range(2)] for _ in sets]
    bound, loads = loads_of(sets, sizes)
    pieces = [(holders, size) for holders, mine in zip(sets, sizes, strict=True) for size in mine]
    best = None
    for choice in product(*(holders for holders, _ in pieces)):
        sent = {holder: 0 for holder in range(3)}
        for holder, (_, size) in zip(choice, pieces, strict=True):
            sent[holder] += size
        best = min(max(sent.values()), best if best is not None else max(sent.values()))
    assert best is not None
    assert bound <= best <= max(loads.values()) <= best + max(size for _, size in pieces)


@given(
    st.dictionaries(
        st.sets(st.integers(0, 5), min_size=1).map(lambda one: tuple(sorted(one))),
        st.lists(st.integers(0, 50), max_size=5),
        min_size=1,
        max_size=10,
    )
)
def test_any_sets(instance: dict[HolderSet, list[int]]) -> None:
    bound, loads = loads_of(list(instance), list(instance.values()))
    assert bound == naive_bound(list(instance), [sum(one) for one in instance.values()])
    largest = max((size for one in instance.values() for size in one), default=0)
    assert max(loads.values(), default=0) <= bound + largest


def test_known_bounds() -> None:
    assert loads_of([(0,)], [[5, 6]]) == (11, {0: 11})
    # What only 0 holds keeps it busy; 1 sends all that both hold.
    assert loads_of([(0,), (0, 1)], [[10], [1, 2, 3]]) == (10, {0: 10, 1: 6})
    # A circle of three sets.
    bound, loads = loads_of([(0, 1), (1, 2), (0, 2)], [[4, 4], [4, 4], [4, 4]])
    assert bound == 8
    assert max(loads.values()) <= 12
    # One row that spans the shares of several holders.
    assert loads_of([(0, 1, 2, 3)], [[100]])[0] == 25


def test_many_different_sets() -> None:
    chance = random.Random(8)
    sets = list(combinations(range(10), 3))
    sizes = [[chance.randrange(1, 1 << 20) for _ in range(20)] for _ in sets]
    bound, loads = loads_of(sets, sizes)
    assert bound * 10 == sum(map(sum, sizes))
    assert max(loads.values()) <= bound + max(map(max, sizes))
