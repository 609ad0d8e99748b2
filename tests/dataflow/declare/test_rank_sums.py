"""Sums over ranks: beside sums by hand, the same bits on all ranks, and which tensors have none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import Tensor, nn

from softs_fast.dataflow.declare.sums import RankGroup
from softs_fast.errors import ConfigError, FlowError

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
DTYPES = [*FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
#: Weights of ranks, of which one is 0.
WEIGHTS = (1.25, 0.75, 0.0, 2.0)


def tensors_of(rank: int) -> list[Tensor]:
    """Return tensors of all dtypes; integers wrap around."""
    random = torch.Generator().manual_seed(rank)
    shapes = ((), (7,), (3, 5), (0, 2))
    some = [(torch.randn(shape, generator=random) * 50).to(dtype) for dtype in DTYPES for shape in shapes]
    return [*some, *torch.randn(2, 600_001, generator=random)]  # more than one bucket


def net_of(rank: int) -> nn.Module:
    """Return a net of which some parameters have no gradient: on no rank, on all but one, and frozen ones."""
    torch.manual_seed(rank)
    net = nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(1, 1), nn.Linear(1, 1).bfloat16()])
    for number, module in enumerate(net):
        for one in module.parameters():
            one.requires_grad_(number != 2)
            if number in (0, 3) or (number == 1 and rank == 1):
                one.grad = torch.randn(one.shape).to(one.dtype)
    return net


def by_hand(parts: Sequence[Tensor], divisor: int = 1) -> Tensor:
    """Return the sum of tensors, in a wide dtype, rounded once."""
    is_exact = not (parts[0].is_floating_point() or parts[0].is_complex())
    wide = torch.int64 if is_exact else torch.complex128 if parts[0].is_complex() else torch.float64
    total = torch.stack([one.detach().to(wide) for one in parts]).sum(dim=0)
    return (total if is_exact else total / divisor).to(parts[0].dtype)


def compute(say: Callable[[Any], None], rank: int, size: int, path: str, order: list[int]) -> str:
    """Do all that a mesh offers; returns a digest of what comes out."""
    dist.init_process_group("gloo", store=dist.FileStore(path, size), rank=order[rank], world_size=size)
    group, every = RankGroup(dist.group.WORLD, order), range(size)
    own, parts = tensors_of(rank), list(zip(*map(tensors_of, every), strict=True))
    sums = group.all_reduce(own, "sum")
    torch.testing.assert_close(sums, [by_hand(one) for one in parts])
    assert all(torch.equal(one, two) for one, two in zip(own, tensors_of(rank), strict=True))
    some = [number for number, one in enumerate(own) if one.dtype in FLOATS]
    means = group.all_reduce([own[number] for number in some], "mean")
    torch.testing.assert_close(means, [by_hand(parts[number], size) for number in some])
    # float32 holds these sums, and the halves do not.
    largest = torch.tensor([65504.0], dtype=torch.float16)
    assert group.all_reduce([largest], "mean")[0].tolist() == [65504.0]
    assert group.all_reduce([], "sum") == []

    net = net_of(rank)
    if not WEIGHTS[rank]:
        for one in net.parameters():
            if one.grad is not None:
                one.grad.fill_(torch.nan)
    group.average_gradients(net, WEIGHTS[rank])
    gradients = [one.grad for one in net.parameters()]
    for mine, several in zip(
        gradients, zip(*(net_of(one).parameters() for one in every), strict=True), strict=True
    ):
        if all(one.grad is None for one in several):
            assert mine is None
            continue
        weighted = [
            torch.zeros(one.shape) if one.grad is None or not weight else one.grad.float() * weight
            for one, weight in zip(several, WEIGHTS, strict=False)
        ]
        assert mine is not None
        torch.testing.assert_close(mine, by_hand(weighted, size).to(mine.dtype))
    unused = nn.Parameter(torch.zeros(3))
    group.average_gradients([unused], 1.0)
    group.average_gradients([], 1.0)
    assert unused.grad is None, "no rank has a gradient"

    group.broadcast(own)
    assert all(torch.equal(one, two) for one, two in zip(own, tensors_of(0), strict=True))
    group.broadcast([])
    with pytest.raises(
        FlowError, match=r"this rank is in all_reduce \(sum\) of 1 tensors: .* something else; all ranks"
    ):
        group.all_reduce([torch.zeros(3 + rank)], "sum")
    with pytest.raises(FlowError, match="something else; all ranks have to make the same"):
        group.broadcast([torch.zeros(1)]) if rank else group.all_reduce([torch.zeros(1)], "sum")
    dist.barrier()
    dist.destroy_process_group()
    digest = hashlib.sha256()
    for one in [*sums, *means, *gradients]:
        if one is not None:
            digest.update(one.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("order", [[1, 0], [2, 0, 1], [0, 3, 1, 2]])
def test_sums_are_those_by_hand_and_have_the_same_bits_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[int]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = ranks.run(compute, len(order), str(tmp_path / "store"), order)
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("tensor", "op", "complaint"),
    [
        (torch.zeros(2, device="meta"), "sum", "on meta; need dense ones on the CPU"),
        (torch.zeros(2).to_sparse(), "sum", "sparse_coo on cpu"),
        (torch.zeros(2, dtype=torch.bool), "sum", "torch.bool, which has no sum"),
        (torch.zeros(2, dtype=torch.int64), "mean", "torch.int64, which has no means; use op='sum'"),
        (1.0, "sum", "got a float; need plain tensors"),
    ],
)
def test_what_has_no_sum_is_refused(tensor: Tensor, op: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"all_reduce: .*{complaint}"):
        RankGroup(None, [0, 1]).all_reduce([torch.zeros(1), tensor], op)
