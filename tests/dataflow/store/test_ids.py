"""Ids of stores: no two kinds have one, and messages may have all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from softs_fast.dataflow.link.messages import Free, decode, encode
from softs_fast.dataflow.store import ids
from softs_fast.errors import FlowError

KINDS = (ids.ROWS, ids.ELEMENTS, ids.HOOKS)


def test_ranges_of_kinds_have_nothing_in_common() -> None:
    for one, other in itertools.combinations(KINDS, 2):
        assert one.stop <= other.start or other.stop <= one.start
    assert all(one.start < one.stop for one in KINDS)


@pytest.mark.parametrize("n", [0, 1, 7, 1 << 20, (1 << 48) - 1])
def test_each_id_is_in_the_range_of_its_kind(n: int) -> None:
    found = [ids.element_id(0, n), ids.element_id(4095, n), ids.state_id(n)]
    assert [[one in kind for kind in KINDS].index(True) for one in found] == [1, 1, 2]
    assert [sum(one in kind for kind in KINDS) for one in found] == [1] * 3


def test_an_element_has_an_id_by_its_dataset_and_its_number() -> None:
    numbers = [(source, number) for source in (0, 1, 4095) for number in (0, 5, (1 << 48) - 1)]
    found = [ids.element_id(*one) for one in numbers]
    assert len(set(found)) == 9
    assert [(ids.source_of(one), ids.number_of(one)) for one in found] == numbers


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ids.element_id(4096, 0), "dataset 4096 has no id in stores; need a number from 0 to 4095"),
        (lambda: ids.element_id(0, 1 << 48), "element 281474976710656 has no id"),
        (lambda: ids.element_id(0, -1), "element -1 has no id"),
        (lambda: ids.state_id(1 << 62), "ticket 4611686018427387904 has no id"),
    ],
)
def test_a_number_that_is_out_of_range_is_refused(make: Callable[[], int], match: str) -> None:
    with pytest.raises(FlowError, match=match):
        make()


def test_the_largest_id_fits_into_a_message() -> None:
    message = Free((ids.HOOKS.stop - 1,))
    assert decode(encode(message)) == message
