"""What calls torch.distributed works unmodified, and ends with the weights that it ends with over gloo, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from backend_ranks import joined
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

Train = Callable[[torch.nn.Module, dist.ProcessGroup, int], torch.nn.Module]


def net() -> torch.nn.Module:
    """Return a network with buffers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 200), torch.nn.BatchNorm1d(200), torch.nn.ReLU(), torch.nn.Linear(200, 8)
    )


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, n: int = 4) -> None:
    """Train on rows of this rank."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(n):
        optimizer.zero_grad()
        model(torch.randn(16, 24, generator=generator)).square().mean().backward()
        optimizer.step()


def ddp(**options: Any) -> Train:
    """Return a training with DistributedDataParallel."""

    def train(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
        # Several buckets in flight; they are made anew after the first step.
        model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.01, **options)
        steps(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), rank)
        with model.no_sync():
            model(torch.ones(2, 24)).sum().backward()
        model(torch.ones(2, 24)).sum().backward()
        return module

    return train


def hooked(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
    model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.01)
    model.register_comm_hook(group, bf16_compress_hook)
    steps(model, torch.optim.SGD(model.parameters(), lr=0.05), rank)
    return module


def mean(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As docs/collectives.md has it; gloo has no mean."""
    is_mean = dist.get_backend(group) == "softs"
    tensor = bucket.buffer() if is_mean else bucket.buffer().div_(group.size())
    op = dist.ReduceOp.AVG if is_mean else dist.ReduceOp.SUM
    work = dist.all_reduce(tensor, op=op, group=group, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def averaged(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
    model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.01)
    # DDP refuses annotations that are texts.
    model.register_comm_hook(group, lambda group, bucket: mean(group, bucket))
    steps(model, torch.optim.SGD(model.parameters(), lr=0.05), rank)
    return module


def power(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
    """Its callbacks make calls and wait for them."""
    model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.01)
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    steps(model, torch.optim.SGD(model.parameters(), lr=0.05), rank, n=6)
    return module


def zero(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
    model = DistributedDataParallel(module, process_group=group)
    steps(
        model,
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01),
        rank,
    )
    return module


def uneven(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
    model = DistributedDataParallel(module, process_group=group)
    with Join([model]):
        steps(model, torch.optim.SGD(model.parameters(), lr=0.05), rank, n=2 + rank)
    return module


def sharded(module: torch.nn.Module, group: dist.ProcessGroup, rank: int) -> torch.nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in module:  # type: ignore[attr-defined]
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    steps(module, torch.optim.AdamW(module.parameters(), lr=0.01), rank)
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    whole = net()
    whole.load_state_dict(
        {
            name: one.full_tensor() if isinstance(one, DTensor) else one
            for name, one in module.state_dict().items()
        }
    )
    return whole


TRAININGS: dict[str, Train] = {
    "ddp": ddp(),
    "views": ddp(gradient_as_bucket_view=True),
    "unused": ddp(find_unused_parameters=True),
    "static graph": ddp(static_graph=True),
    "bfloat16": hooked,
    "mean": averaged,
    "powerSGD": power,
    "ZeRO": zero,
    "join": uneven,
    "FSDP": sharded,
}


def trains(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[str]:
    different = []
    with joined(rank, size, folder):
        softs = dist.group.WORLD
        assert softs is not None
        gloo = dist.new_group(backend="gloo")
        for name, train in TRAININGS.items():
            weights = []
            for group in (softs, gloo):
                trained = train(copy.deepcopy(net()), group, rank)
                weights.append(
                    torch.cat([one.detach().flatten().double() for one in trained.state_dict().values()])
                )
            if not torch.equal(*weights):
                different.append(f"{name}: {float((weights[0] - weights[1]).abs().max()):g}")
    return different


def test_trainings_end_with_the_weights_that_they_end_with_over_gloo(tmp_path: Path) -> None:
    assert ranks.run(trains, 2, str(tmp_path)) == [[], []]


def tensors(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with joined(rank, size, folder):
        mesh = dist.init_device_mesh("cpu", (size,))
        whole = torch.arange(30.0).view(10, 3)
        rows = distribute_tensor(whole, mesh, [Shard(0)])
        assert torch.equal(
            rows.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local(), whole
        )
        assert torch.equal(rows.sum(0).full_tensor(), whole.sum(0))
        assert (
            functional.all_reduce(torch.full((3,), float(rank)), "sum", list(range(size))).tolist()
            == [3.0] * 3
        )
        gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
        assert gathered.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
        moved = functional.all_to_all_single(torch.arange(3.0) + 10 * rank, None, None, dist.group.WORLD)
        assert moved.tolist() == [float(rank), 10.0 + rank, 20.0 + rank]


def test_distributed_tensors_and_functional_collectives(tmp_path: Path) -> None:
    assert ranks.run(tensors, 3, str(tmp_path)) == [None] * 3


def saves(say: Callable[[Any], None], rank: int, size: int, folder: str, is_load: bool) -> None:
    with joined(rank, size, f"{folder}/{size}"):
        mesh = dist.init_device_mesh("cpu", (size,))
        whole = torch.arange(35.0).view(7, 5)
        state = {"weight": distribute_tensor(torch.zeros_like(whole) if is_load else whole, mesh, [Shard(0)])}
        if is_load:
            checkpoint.load(state, checkpoint_id=f"{folder}/saved")
            assert torch.equal(state["weight"].full_tensor(), whole)
        else:
            checkpoint.save(state, checkpoint_id=f"{folder}/saved")


def test_a_distributed_checkpoint_is_loaded_by_another_number_of_ranks(tmp_path: Path) -> None:
    for size, is_load in ((2, False), (3, True)):
        (tmp_path / str(size)).mkdir()
        assert ranks.run(saves, size, str(tmp_path), is_load) == [None] * size
