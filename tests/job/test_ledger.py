"""Which numbers a step owns, and which of them a rank takes: partition and order, for all small sizes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from softs_fast.errors import ConfigError
from softs_fast.job.ledger import Ledger, share

SIZES = [(n_micro_batches, size) for n_micro_batches in range(1, 13) for size in range(1, 15)]


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_shares_are_a_partition_in_the_order_of_ranks(micro_batch_size: int) -> None:
    """J1, exhaustively for up to 12 micro-batches; also with more ranks than these."""
    for n_micro_batches, size in SIZES:
        ledger = Ledger("p", n_micro_batches * micro_batch_size, micro_batch_size)
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
    names = ["product", "global_batch_size", "micro_batch_size", "switches"]
    assert [field.name for field in fields(Ledger)] == names


def test_each_product_has_each_of_its_numbers_once() -> None:
    """Also one that comes again, which goes on."""
    ledger = Ledger("a", 4, 2, ((2, "b"), (3, "a"), (5, "c"), (9, "b")))
    assert "".join(map(ledger.product_of, range(11))) == "aabaaccccbb"
    owned: dict[str, list[int]] = {}
    for step in range(20):
        owned.setdefault(ledger.product_of(step), []).extend(ledger.numbers(step))
    assert {product: len(numbers) for product, numbers in owned.items()} == {"a": 16, "b": 48, "c": 16}
    assert all(numbers == list(range(len(numbers))) for numbers in owned.values())


@pytest.mark.parametrize("steps", [(0,), (3, 3), (5, 4)])
def test_switches_are_in_order(steps: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="each later than the one before"):
        Ledger("a", 4, 2, tuple((step, "b") for step in steps))


@pytest.mark.parametrize(("whole", "part"), [(96, 7), (8, 16), (0, 1), (4, 0)])
def test_micro_batches_make_up_a_global_batch(whole: int, part: int) -> None:
    with pytest.raises(
        ConfigError, match=f"global_batch_size={whole} is no multiple of micro_batch_size={part}"
    ):
        Ledger("p", whole, part)
