"""Extents of a segment: they never overlap, and what is free again is one extent again."""

from __future__ import annotations

import random

import numpy as np
import pytest

from softs_fast.dataflow.store.space import Space


@pytest.mark.parametrize("block", range(3))
def test_extents_never_overlap_and_none_is_lost(block: int) -> None:
    """60 random orders of calls."""
    for seed in range(20 * block, 20 * block + 20):
        check_random_calls(random.Random(seed))


def check_random_calls(chance: random.Random) -> None:
    n_bytes = chance.choice([64, 500, 5000])
    space = Space(n_bytes)
    used = [False] * n_bytes
    taken: list[tuple[int, int]] = []
    for _ in range(300):
        if taken and chance.random() < 0.5:
            chance.shuffle(taken)
            n = chance.randrange(1, len(taken) + 1)
            space.give(*np.array(taken[:n], np.int64).T)
            for start, size in taken[:n]:
                used[start : start + size] = [False] * size
            del taken[:n]
            continue
        sizes = [chance.randrange(1, 40) for _ in range(chance.randrange(1, 9))]
        holes = [len(hole) for hole in "".join(".#"[u] for u in used).split("#")]
        assert space.largest == max(holes)
        offsets = space.take(sizes)
        if offsets is None:
            # Greedy placing may fail where another order would do, but never if one hole has room for all.
            assert max(holes) < sum(sizes)
        else:
            assert len(offsets) == len(sizes)
            for start, size in zip(offsets, sizes, strict=True):
                assert 0 <= start <= n_bytes - size
                assert not any(used[start : start + size])
                used[start : start + size] = [True] * size
                taken.append((start, size))
            if max(holes) >= sum(sizes):
                assert all(a + size == b for a, size, b in zip(offsets, sizes, offsets[1:], strict=False))
        assert space.n_free == used.count(False)
    space.give(*np.array(taken, np.int64).reshape(-1, 2).T)
    assert (space.n_free, space.largest) == (n_bytes, n_bytes)


def test_one_value_that_fits_no_hole_is_refused_and_nothing_changes() -> None:
    space = Space(100)
    first, _, third = space.take([30, 40, 30]) or []
    space.give(np.array([first, third]), np.array([30, 30]))
    assert space.take([10, 31]) is None
    assert (space.n_free, space.largest) == (60, 30)
    assert sorted(space.take([20, 30]) or []) == [0, 70]
    assert space.take([]) == []
