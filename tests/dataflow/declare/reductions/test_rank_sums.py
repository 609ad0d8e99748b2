"""Sums over ranks are the sums in the order of ranks, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_processes import of_processes
from torch import Tensor, nn

from softs_fast.dataflow.declare.reductions.buckets import Buckets
from softs_fast.dataflow.declare.reductions.gloo import GlooRanks
from softs_fast.dataflow.declare.reductions.reduce import all_reduce, average_gradients, broadcast
from softs_fast.dataflow.declare.reductions.sums import sum_in_order
from softs_fast.errors import FlowError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
DTYPES = [*FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def tensors_of(rank: int) -> list[Tensor]:
    """Return tensors of all dtypes, with exponents that make the order of a sum count."""
    random = torch.Generator().manual_seed(rank)
    found = []
    for dtype in DTYPES:
        for shape in ((), (7,), (3, 5), (0, 2)):
            one = torch.randn(shape, generator=random) * 10.0 ** torch.randint(-3, 4, shape, generator=random)
            found.append(one.to(dtype))
    # More than one bucket, and numbers of which the order of a sum counts often.
    return [*found, torch.randn(1_100_001, generator=random)]


def plain_of(own: list[Tensor]) -> list[Tensor]:
    """Return tensors of the dtypes that two ranks leave to gloo."""
    return [own[-1], own[-1].double() / 3]


def net_of(rank: int) -> nn.Module:
    """Return a net of which some parameters have no gradient: on no rank, on all but one, and frozen ones."""
    torch.manual_seed(rank)
    net = nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(1, 1), nn.Linear(1, 1).bfloat16()])
    net.extend(nn.Linear(1, 1) for _ in range(200))
    for number, module in enumerate(net):
        for one in module.parameters():
            one.requires_grad_(number != 2)
            if number in (0, 3) or (number == 1 and rank == 1) or (number == 203 and rank == 0):
                one.grad = torch.randn(one.shape).to(one.dtype)
    return net


def weight_of(rank: int) -> float:
    """Return weights of which one is 0."""
    return (1.25, 0.75, 0.0, 2.0)[rank]


def compute(group: GlooRanks, rank: int) -> dict[str, list[Any]]:
    """Do all that a mesh offers."""
    own = tensors_of(rank)
    before = [one.clone() for one in own]
    sums = all_reduce(group, own, "sum")
    assert all(torch.equal(one, other) for one, other in zip(own, before, strict=True))
    floats = [one for one in own if one.dtype in FLOATS]
    means = all_reduce(group, floats, "mean")
    plain = all_reduce(group, plain_of(own), "mean")
    net = net_of(rank)
    if weight_of(rank) == 0:
        for one in net.parameters():
            if one.grad is not None:
                one.grad.fill_(torch.nan)
    average_gradients(group, net, weight_of(rank))
    unused = torch.nn.Parameter(torch.zeros(3))
    average_gradients(group, [unused], 1.0)
    assert unused.grad is None, "no rank has a gradient"
    broadcast(group, own)
    with pytest.raises(FlowError, match=r"something else|has to make the same calls|all ranks have to make"):
        all_reduce(group, [torch.zeros(3 + rank)], "sum")
    return {
        "sums": sums,
        "means": means,
        "plain": plain,
        "gradients": [one.grad for one in net.parameters()],
        "first": own,
        "empty": all_reduce(group, [], "sum"),
    }


def expected(n_ranks: int) -> dict[str, list[Any]]:
    """Return the same by hand."""
    all_tensors = [tensors_of(rank) for rank in range(n_ranks)]
    all_floats = [[one for one in own if one.dtype in FLOATS] for own in all_tensors]
    gradients: list[Tensor | None] = []
    for several in zip(*(net_of(rank).parameters() for rank in range(n_ranks)), strict=True):
        weighted = [
            torch.zeros_like(one) if one.grad is None or not weight_of(rank) else one.grad * weight_of(rank)
            for rank, one in enumerate(several)
        ]
        has_any = any(one.grad is not None for one in several)
        gradients.append(sum_in_order([one.detach() for one in weighted], n_ranks) if has_any else None)
    return {
        "sums": [sum_in_order(several) for several in zip(*all_tensors, strict=True)],
        "means": [sum_in_order(several, n_ranks) for several in zip(*all_floats, strict=True)],
        "plain": [
            sum_in_order(several, n_ranks)
            for several in zip(*(plain_of(own) for own in all_tensors), strict=True)
        ],
        "gradients": gradients,
        "first": all_tensors[0],
        "empty": [],
    }


def check(found: list[dict[str, list[Any]]]) -> None:
    due = expected(len(found))
    for one in found:
        assert one.keys() == due.keys()
        for name, values in due.items():
            assert len(one[name]) == len(values)
            for value, other in zip(one[name], values, strict=True):
                if other is None:
                    assert value is None
                else:
                    assert (value.dtype, value.shape) == (other.dtype, other.shape)
                    # Equal bits, also of what is no number.
                    assert (
                        value.numpy(force=True).tobytes() == other.numpy(force=True).tobytes()
                        if (value.dtype is not torch.bfloat16)
                        else torch.equal(value, other)
                    )


def test_the_order_counts_in_these_numbers() -> None:
    parts = [tensors_of(rank)[-1] for rank in range(3)]
    assert not torch.equal(sum_in_order(parts), sum_in_order(parts[::-1]))
    assert len(Buckets(tensors_of(0), 2).numbers) > len(DTYPES)


@pytest.mark.parametrize("order", [[1, 0], [2, 0, 1], [0, 3, 1, 2]])
def test_processes_have_the_sums_in_the_order_of_ranks(order: list[int]) -> None:
    check(of_processes(compute, order))
