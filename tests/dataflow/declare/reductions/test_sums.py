"""The sum of tensors in one order, and which tensors have one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from softs_fast.dataflow.declare.reductions.sums import check_summable, sum_in_order
from softs_fast.errors import ConfigError


def test_the_order_is_that_of_the_parts() -> None:
    big, one = torch.tensor([1e8]), torch.tensor([1.0])
    assert sum_in_order([big, one, -big]).tolist() == [0.0]
    assert sum_in_order([big, -big, one]).tolist() == [1.0]
    assert big.tolist() == [1e8]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_numbers_are_summed_and_divided_before_they_are_rounded(dtype: torch.dtype) -> None:
    parts = [torch.tensor([2048.0], dtype=dtype), *[torch.tensor([1.0], dtype=dtype)] * 8]
    assert (parts[0] + parts[1]).tolist() == [2048.0]
    total = sum_in_order(parts)
    assert total.dtype is dtype
    assert total.tolist() == torch.tensor([2056.0]).to(dtype).tolist()


def test_a_mean_of_float16_does_not_overflow() -> None:
    largest = torch.tensor([65504.0], dtype=torch.float16)
    assert sum_in_order([largest, largest], 2).tolist() == [65504.0]
    assert sum_in_order([largest, largest]).tolist() == [torch.inf]


def test_integers_and_complex_numbers() -> None:
    assert sum_in_order([torch.tensor([200], dtype=torch.uint8)] * 2).tolist() == [144]
    assert sum_in_order([torch.tensor([1 + 2j])] * 3, 3).tolist() == [1 + 2j]


@given(n_parts=st.integers(1, 5), n=st.integers(1, 70), at=st.integers(0, 70), divisor=st.integers(1, 4))
def test_slices_have_the_sums_that_they_have_in_the_whole(
    n_parts: int, n: int, at: int, divisor: int
) -> None:
    random = torch.Generator().manual_seed(n_parts * 1000 + n)
    parts = [torch.randn(n, generator=random) * 10**i for i in range(n_parts)]
    cut = min(at, n)
    both = torch.cat(
        [
            sum_in_order([one[:cut] for one in parts], divisor),
            sum_in_order([one[cut:] for one in parts], divisor),
        ]
    )
    assert torch.equal(sum_in_order(parts, divisor), both)


@pytest.mark.parametrize(
    ("tensor", "is_divided", "complaint"),
    [
        (torch.zeros(2, device="meta"), False, "on meta; need dense ones on the CPU"),
        (torch.zeros(2).to_sparse(), False, "sparse_coo on cpu"),
        (torch.zeros(2, dtype=torch.bool), False, "torch.bool, which has no sum"),
        (torch.zeros(2, dtype=torch.int64), True, "torch.int64, which has no means; use op='sum'"),
        (1.0, False, "got a float; need plain tensors"),
    ],
)
def test_what_has_no_sum_is_refused(tensor: Tensor, is_divided: bool, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"all_reduce: .*{complaint}"):
        check_summable("all_reduce", [torch.zeros(1), tensor], is_divided=is_divided)
