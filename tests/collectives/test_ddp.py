"""DistributedDataParallel with our hook gives the weights that it gives without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from softs_fast.collectives import DDPState, Schedule, ShmStrategy, ddp_hook
from softs_fast.errors import ConfigError, PeerLost

SCHEDULE = Schedule(1 << 15, 1 << 16)


def trained(rank: int, state: DDPState | None, *, views: bool) -> torch.Tensor:
    """Train a small network for some steps; returns its weights."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 200), torch.nn.ReLU(), torch.nn.Linear(200, 8))
    # Several buckets, in flight at once; DDP makes them anew after the first step.
    model = DistributedDataParallel(net, bucket_cap_mb=0.01, gradient_as_bucket_view=views)
    if state is not None:
        model.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(16, 32, generator=generator)).square().mean().backward()
        optimizer.step()
    if state is not None:
        state.close()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def heads(rank: int, state: DDPState | None, *, views: bool) -> torch.Tensor:
    """Train heads that no rank uses after the first step, or some ranks only; returns their weights."""
    torch.manual_seed(0)
    net = torch.nn.ModuleDict({name: torch.nn.Linear(4, 1) for name in ("body", "unused", "some")})

    class Model(torch.nn.Module):
        net: torch.nn.ModuleDict

        def forward(self, row: torch.Tensor, names: list[str]) -> torch.Tensor:
            return torch.stack([self.net[name](row).mean() for name in names]).sum()

    whole = Model()
    whole.net = net
    model = DistributedDataParallel(whole, find_unused_parameters=True, gradient_as_bucket_view=views)
    if state is not None:
        model.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for step in range(4):
        optimizer.zero_grad()
        names = ["body", *(["unused"] if step == 0 else []), *(["some"] if rank == 0 else [])]
        model(torch.full((2, 4), 1.0 + step + rank), names).backward()
        optimizer.step()
    if state is not None:
        state.close()
    found = dict(net.named_parameters())
    assert [name for name, one in found.items() if one.grad is None] == ["unused.weight", "unused.bias"]
    return torch.cat([one.detach().flatten() for one in found.values()])


def with_and_without(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[float]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, dist.group.WORLD) as strategy:
        for views in (True, False):
            stock = trained(rank, None, views=views)
            ours = trained(rank, DDPState(strategy), views=views)
            if size == 2:
                assert torch.equal(stock, ours)
            # The order of summation differs from the ring's: a unit or two in the last place, per step.
            assert torch.allclose(stock, ours, rtol=1e-5, atol=1e-6)
            for compress in (torch.bfloat16, torch.float16):
                narrow = trained(rank, DDPState(strategy, compress=compress), views=views)
                assert not torch.equal(narrow, ours)
                assert torch.allclose(narrow, ours, atol=5e-3)
            stock, with_heads = (heads(rank, state, views=views) for state in (None, DDPState(strategy)))
            assert torch.allclose(stock, with_heads, rtol=1e-5, atol=1e-6)
        sparse = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True)))
        refuses = DDPState(strategy)
        sparse.register_comm_hook(refuses, ddp_hook)
        with pytest.raises(
            ConfigError, match=r'gradient of parameter "0\.weight" is float32 of layout sparse_coo'
        ):
            sparse(torch.tensor([rank, 3])).sum().backward()
        assert isinstance(refuses.error, ConfigError)
        refuses.close()
        closed = DDPState(strategy)
        closed.close()
        with pytest.raises(ConfigError, match="closed"):
            closed.submit(torch.zeros(1))
        with pytest.raises(ConfigError, match="compress"):
            DDPState(strategy, compress=torch.float64)
        strategy.barrier()
    dist.destroy_process_group()
    return ours.tolist()


@pytest.mark.parametrize("size", [2, 3])
def test_the_same_weights_with_and_without(tmp_path: Path, size: int) -> None:
    weights = ranks.run(with_and_without, size, str(tmp_path))
    assert all(other == weights[0] for other in weights)


class Fails:
    """A strategy that cannot."""

    def __init__(self, strategy: ShmStrategy) -> None:
        self._strategy = strategy

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        self._strategy.give_up("rank 1 has had enough")
        self._strategy.barrier()


def breaks(say: Callable[[Any], None], rank: int, size: int, folder: str) -> tuple[str, str]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    strategy = ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, dist.group.WORLD)
    state = DDPState(Fails(strategy) if rank == 1 else strategy)  # type: ignore[arg-type]
    with state, pytest.raises(RuntimeError, match="rank 1") as raised:
        trained(rank, state, views=True)
    strategy.close()
    # DDP raises the text only.
    assert isinstance(state.error, PeerLost)
    return str(raised.value), str(state.error)


def test_a_failure_is_raised_by_backward(tmp_path: Path) -> None:
    for_ddp, kept = ranks.run(breaks, 2, str(tmp_path))[0]
    assert "rank 1" in kept
    assert kept in for_ddp
