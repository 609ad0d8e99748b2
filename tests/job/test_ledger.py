"""Which numbers a step owns, and which of them a rank takes: partition, order and skipped numbers, for all small sizes."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.errors import ConfigError
from softs_fast.job.ledger import Ledger, Segment, share

SIZES = [(n_micro_batches, size) for n_micro_batches in range(1, 13) for size in range(1, 15)]


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_shares_are_a_partition_in_the_order_of_ranks(micro_batch_size: int) -> None:
    """J1, exhaustively for up to 12 micro-batches; also with more ranks than these."""
    for n_micro_batches, size in SIZES:
        ledger = Ledger.of("p", n_micro_batches * micro_batch_size, micro_batch_size)
        shares = [share(n_micro_batches, rank, size) for rank in range(size)]
        assert [index for one in shares for index in one] == list(range(n_micro_batches))
        lengths = [len(one) for one in shares]
        assert max(lengths) - min(lengths) <= 1
        assert size > n_micro_batches or min(lengths) > 0
        for step in range(5):
            first = step * n_micro_batches * micro_batch_size
            assert ledger.numbers(step) == range(first, first + n_micro_batches * micro_batch_size)


def test_a_ledger_knows_no_rank_and_no_time() -> None:
    """J3: nothing in it can depend on ranks that died, joined or moved."""
    names = [field.name for kind in (Ledger, Segment) for field in fields(kind)]
    assert names == [
        "segments",
        "skipped",
        "first_step",
        "product",
        "base",
        "global_batch_size",
        "micro_batch_size",
    ]


@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=6),
    st.sets(st.tuples(st.integers(0, 20), st.integers(0, 23)), max_size=5),
)
def test_each_number_of_a_product_is_trained_once_or_skipped(
    n_micro_batches: int,
    micro_batch_size: int,
    switches: list[tuple[int, str]],
    skips: set[tuple[int, int]],
) -> None:
    """J2, J3: whatever products follow each other, also one that follows again, and after no step."""
    ledger = Ledger.of("a", n_micro_batches * micro_batch_size, micro_batch_size)
    step = 0
    for n_steps, product in switches:
        step += n_steps
        ledger = ledger.switched(step, product)
    last = step + 3
    for at, place in skips:
        numbers = ledger.numbers(at % last)
        ledger = ledger.without(at % last, numbers[place % len(numbers)])
    ledger = Ledger.of_state(ledger.state_dict())
    trained: dict[str, list[int]] = {}
    for one in range(last):
        trained.setdefault(ledger.segment(one).product, []).extend(ledger.trained(one))
    for product, numbers in trained.items():
        skipped = [number for name, number in ledger.skipped if name == product]
        assert sorted([*numbers, *skipped]) == list(range(len(numbers) + len(skipped)))
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(("whole", "part"), [(96, 7), (8, 16), (0, 1), (4, 0)])
def test_micro_batches_make_up_a_global_batch(whole: int, part: int) -> None:
    with pytest.raises(
        ConfigError, match=f"global_batch_size={whole} is no multiple of micro_batch_size={part}"
    ):
        Ledger.of("p", whole, part)
