"""Senders of values: each has the value, those without a choice count first, and equal holders share evenly."""

from __future__ import annotations

import random
from collections import Counter

from softs_fast.dataflow.store.senders import senders_of


def test_the_least_loaded_holder_sends() -> None:
    assert senders_of([(0, 1), (0,), (0, 1)], [5, 5, 5]) == [1, 0, 0]
    assert senders_of([(0, 1)], [5], Counter({0: 1})) == [1]
    assert senders_of([], []) == []


def test_equal_holders_differ_by_one_value_at_most() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        sizes = [chance.randrange(100) for _ in range(chance.randrange(1, 40))]
        holders = tuple(range(chance.randrange(1, 5)))
        senders = senders_of([holders] * len(sizes), sizes)
        loads = dict.fromkeys(holders, 0)
        for one, size in zip(senders, sizes, strict=True):
            loads[one] += size
        assert max(loads.values()) - min(loads.values()) <= max(sizes)
