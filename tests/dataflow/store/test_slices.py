"""Slices of rows, and which rank gets which: beside all possibilities for small numbers."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.dataflow.store.slices import assignment, slices_by_count, slices_by_tokens
from softs_fast.errors import ConfigError


def loads(slices: np.ndarray, tokens: np.ndarray, n: int) -> list[int]:
    return [int(tokens[slices == one].sum()) for one in range(n)]


def test_the_largest_slice_is_near_the_least_possible() -> None:
    for seed in range(40):
        check_slices(np.random.default_rng(seed))


def check_slices(chance: np.random.Generator) -> None:
    n_groups, group, n = int(chance.integers(1, 8)), int(chance.integers(1, 4)), int(chance.integers(1, 4))
    tokens = chance.integers(0, 100, n_groups * group)
    slices = slices_by_tokens(tokens, group, n)
    assert all(len(set(slices[i : i + group])) == 1 for i in range(0, len(slices), group))
    of_group = tokens.reshape(-1, group).sum(axis=1)
    best = min(
        max(int(sum(of_group[i] for i in range(n_groups) if choice[i] == one)) for one in range(n))
        for choice in product(range(n), repeat=n_groups)
    )
    assert best <= max(loads(slices, tokens, n)) <= best * 4 / 3


def test_many_groups_are_even() -> None:
    tokens = np.random.default_rng(1).integers(64, 4096, 8192)
    found = loads(slices_by_tokens(tokens, 8, 8), tokens, 8)
    assert max(found) - min(found) < 4096
    equal = slices_by_tokens(np.zeros(64, np.int64), 2, 4)
    assert np.bincount(equal).tolist() == [16] * 4


@pytest.mark.parametrize(
    ("n_rows", "group", "n", "counts"),
    [(12, 2, 3, [4, 4, 4]), (10, 2, 3, [4, 4, 2]), (2, 1, 4, [1, 0, 1, 0]), (0, 3, 2, [0, 0])],
)
def test_counts_differ_by_one_group(n_rows: int, group: int, n: int, counts: list[int]) -> None:
    slices = slices_by_count(n_rows, group, n)
    assert np.bincount(slices, minlength=n).tolist() == counts
    assert (np.diff(slices) >= 0).all()


@pytest.mark.parametrize("group", [0, -1, 3])
def test_rows_that_are_no_whole_groups_are_refused(group: int) -> None:
    with pytest.raises(ConfigError, match=f"4 rows are not whole groups of {group}"):
        slices_by_count(4, group, 2)
    with pytest.raises(ConfigError, match=f"4 rows are not whole groups of {group}"):
        slices_by_tokens(np.ones(4, np.int64), group, 2)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 20), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_an_assignment_has_the_least_cost(costs: list[list[int]]) -> None:
    found = assignment(np.array(costs))
    assert sorted(found) == list(range(len(costs)))
    least = min(
        sum(row[i] for row, i in zip(costs, order, strict=True)) for order in permutations(range(len(costs)))
    )
    assert sum(row[i] for row, i in zip(costs, found, strict=True)) == least


def test_an_assignment_of_many_with_large_costs() -> None:
    """A permutation is hidden in costs that a greedy choice gets wrong: duals prove the optimum."""
    chance = np.random.default_rng(4)
    n = 60
    hidden = chance.permutation(n)
    rows, columns = chance.integers(0, 1 << 40, n), chance.integers(0, 1 << 40, n)
    costs = rows[:, None] + columns[None, :] + chance.integers(1, 1 << 40, (n, n))
    costs[np.arange(n), hidden] = rows + columns[hidden]
    assert assignment(costs) == hidden.tolist()
    assert assignment(np.zeros((0, 0), np.int64)) == []
