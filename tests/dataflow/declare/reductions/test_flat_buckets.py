"""Tensors in flat buckets: nothing is lost, dtypes stay apart, and sizes are multiples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.dataflow.declare.reductions.buckets import Buckets

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
SHAPES = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=12)


@given(shapes=SHAPES, multiple=st.integers(1, 4), most_bytes=st.sampled_from([1, 64, 1 << 20]))
def test_all_tensors_come_back_as_they_were(
    shapes: Sequence[tuple[torch.dtype, list[int]]], multiple: int, most_bytes: int
) -> None:
    tensors = [
        torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape).add(number)
        for number, (dtype, shape) in enumerate(shapes)
    ]
    buckets = Buckets(tensors, multiple, most_bytes)
    joined = buckets.join(tensors, tensors)
    for flat, numbers in zip(joined, buckets.numbers, strict=True):
        assert {tensors[number].dtype for number in numbers} == {flat.dtype}
        assert flat.is_contiguous()
        assert len(flat) >= multiple
        assert len(flat) % multiple == 0
        own = [tensors[number].nbytes for number in numbers]
        assert len(own) == 1 or sum(own) <= most_bytes
        assert not flat[sum(tensors[number].numel() for number in numbers) :].any()
    for one, other in zip(buckets.part(joined, tensors), tensors, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


def test_few_buckets_for_many_tensors_of_mixed_dtypes() -> None:
    tensors = [torch.zeros(10, dtype=DTYPES[i % 2]) for i in range(20)]
    assert [len(one) for one in Buckets(tensors, 2).numbers] == [10, 10]


def test_what_is_not_there_is_zero_and_strides_do_not_matter() -> None:
    tensors = [torch.arange(6.0).reshape(2, 3).T, torch.ones(4)]
    buckets = Buckets(tensors, 3)
    (flat,) = buckets.join([tensors[0], None], tensors)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5, 0, 0, 0, 0, 0, 0]
    assert buckets.part([flat], tensors)[0].tolist() == tensors[0].tolist()
