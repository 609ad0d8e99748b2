"""The DDP hook with buckets on CUDA devices."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from softs_fast.collectives import CudaStrategy, DDPState, Schedule, ddp_hook
from softs_fast.gpu.checks.on_device import to_device
from softs_fast.tensors import cuda

SCHEDULE = Schedule(1 << 12, 1 << 20)
Say = Callable[[Any], None]


@dataclass
class Bucket:
    """What DDP hands to a hook."""

    tensor: torch.Tensor

    def buffer(self) -> torch.Tensor:
        return self.tensor


def hooks(say: Say, rank: int, size: int, folder: str, compress: torch.dtype | None) -> None:
    device = rank % max(1, cuda.n_devices())
    strategy = CudaStrategy(device=device, timeout_s=30, staging_bytes=1 << 20, schedule=SCHEDULE).init(
        rank, size, folder
    )
    # Not a bfloat16, and neither is its mean: so it is cast once, on the way.
    value = rank + 1 + 2**-10
    with strategy, DDPState(strategy, compress=compress) as state:
        buckets = [to_device(torch.full((n,), value), device) for n in (3, 2000, 50_000)]
        futures = [ddp_hook(state, Bucket(bucket)) for bucket in buckets]  # type: ignore[arg-type]
        for bucket, future in zip(buckets, futures, strict=True):
            assert future.wait() is not None
            assert state.error is None
            strategy.synchronize()
            assert (bucket == (size + 1) / 2 + (0 if compress else 2**-10)).all()


@pytest.mark.parametrize("compress", [None, torch.bfloat16])
def test_buckets_become_their_mean(tmp_path: Path, compress: torch.dtype | None) -> None:
    ranks.run(hooks, 3, str(tmp_path), compress)


def trains(say: Say, rank: int, size: int, folder: str, hooked: bool) -> list[float]:
    device = rank % cuda.n_devices()
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(f"{folder}/store", size))
    torch.manual_seed(3)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 500), torch.nn.ReLU(), torch.nn.Linear(500, 8)).cuda(),
        gradient_as_bucket_view=True,
        bucket_cap_mb=0.01,
    )
    with (
        CudaStrategy(timeout_s=30).init(rank, size, dist.group.WORLD) as strategy,
        DDPState(strategy) as state,
    ):
        if hooked:
            model.register_comm_hook(state, ddp_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            optimizer.step()
        weights = [float(parameter.double().sum()) for parameter in model.parameters()]
    dist.destroy_process_group()
    return weights


@pytest.mark.skipif(cuda.is_standin, reason="DDP makes its own buckets, with torch's memory")
def test_training_on_devices_is_that_of_plain_ddp(tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    for folder in (plain, ours):
        folder.mkdir()
    wanted = ranks.run(trains, 2, str(plain), False)
    assert ranks.run(trains, 2, str(ours), True) == wanted
