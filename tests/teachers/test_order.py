"""Orders are permutations, one for each seed, rank and pass, and the same in every version."""

from __future__ import annotations

from collections import Counter

import pytest

from softs_fast import GeneratorFailed
from softs_fast.teachers.order import Order, permuted


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 100, 1000])
def test_places_are_permuted(n: int) -> None:
    assert sorted(permuted(place, n, b"key") for place in range(n)) == list(range(n))


def test_large_collections_need_no_table() -> None:
    n = 10**15
    found = [permuted(place, n, b"key") for place in range(100)]
    assert len(set(found)) == 100
    assert min(found) < n / 10
    assert 9 * n / 10 < max(found) < n


def test_each_pass_has_all_elements_in_another_order() -> None:
    order = Order(seed=3)
    passes = [[order.index(number, 0, 20) for number in range(i * 20, i * 20 + 20)] for i in range(3)]
    assert all(sorted(one) == list(range(20)) for one in passes)
    assert len({tuple(one) for one in [*passes, range(20)]}) == 4


def test_seed_rank_and_number_decide() -> None:
    def stream(seed: int, rank: int) -> tuple[int, ...]:
        return tuple(Order(seed).index(number, rank, 50) for number in range(100))

    assert stream(0, 0) == stream(0, 0)
    assert len({stream(0, 0), stream(1, 0), stream(0, 1), stream(1, 1)}) == 4


def test_order_is_the_same_in_every_version() -> None:
    """A stream that is resumed by a later version goes on where it was."""
    assert [Order(7).index(number, 2, 10) for number in range(20)] == [
        2,
        0,
        8,
        4,
        1,
        6,
        3,
        7,
        5,
        9,
        8,
        7,
        3,
        9,
        0,
        4,
        2,
        6,
        5,
        1,
    ]


@pytest.mark.parametrize("n", [3, 7, 16])
def test_each_element_comes_first_about_as_often(n: int) -> None:
    first = Counter(Order(seed).index(0, 0, n) for seed in range(200 * n))
    assert min(first.values()) > 140
    assert max(first.values()) < 260


def test_a_stream_that_is_not_repeated_ends() -> None:
    order = Order(repeat=False)
    assert sorted(order.index(number, 0, 4) for number in range(4)) == [0, 1, 2, 3]
    with pytest.raises(
        GeneratorFailed, match=r"used up: one pass has samples 0 to 3, .*; sample 4 was ordered"
    ):
        order.index(4, 0, 4)
