"""DistributedDataParallel with our hook gives the weights that it gives without."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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


def test_sparse_gradients_are_refused_by_the_shape_of_their_parameter() -> None:
    weight = torch.ones(10, 3)
    bucket: Any = SimpleNamespace(buffer=weight.to_sparse, parameters=lambda: [weight])
    with (
        DDPState(ShmStrategy()) as state,
        pytest.raises(ConfigError, match=r"parameters of shapes \[10, 3\] are sparse_coo"),
    ):
        ddp_hook(state, bucket)
