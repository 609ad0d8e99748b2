"""Averages of gradients over ranks: `python -m benches.dataflow_ranks [ROUNDS]`.

Processes with a process group of the backend "softs", and with one of gloo on loopback; in each, in turns:

* "mesh": `Mesh.average_gradients`.
* "all_reduce": the gradients into one flat tensor, `all_reduce`, and back.
* "DDP": what DistributedDataParallel adds to a backward pass of nearly no other work.
* "bare": `all_reduce` of one tensor of that size, without any copy.

Times are medians over the rounds, in milliseconds: elapsed, of the slowest rank, and of the processor, all ranks together.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from softs_fast.collectives.backend import register
from softs_fast.dataflow.declare.sums import RankGroup

MODELS = {
    "20 tensors, 80 KB": [(32, 32)] * 20,
    "10 tensors, 4.2 MB": [(256, 410)] * 10,
    "160 tensors, 42 MB": [(256, 256)] * 160,
    "10 tensors, 42 MB": [(1024, 1024)] * 10,
    "5000 tensors, 41 MB": [(2048,)] * 5000,
}


class Sum(nn.Module):
    """Parameters of which the gradients are known; the backward pass only writes them."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self) -> Tensor:
        """Return the sum of all."""
        return torch.stack([one.sum() for one in self.all]).sum()


def ways(shapes: list[tuple[int, ...]], n_ranks: int) -> dict[str, Callable[[], Tensor]]:
    """Return functions that do one round, and return seconds, elapsed and of the processor."""
    plain, parallel = Sum(shapes), DistributedDataParallel(Sum(shapes))
    group = RankGroup(dist.group.WORLD, range(n_ranks))
    bare = torch.zeros(sum(one.numel() for one in plain.parameters()))
    plain().backward()
    gradients = [one.grad for one in plain.parameters() if one.grad is not None]

    def timed(action: Callable[[], Any]) -> Tensor:
        dist.barrier()
        began = (time.perf_counter(), time.process_time())
        action()
        return torch.tensor([time.perf_counter() - began[0], time.process_time() - began[1]])

    def flat() -> None:
        joined = torch.cat([one.view(-1) for one in gradients])
        dist.all_reduce(joined)
        joined /= n_ranks
        for one, part in zip(gradients, joined.split([one.numel() for one in gradients]), strict=True):
            one.copy_(part.view_as(one))

    def backward(module: nn.Module) -> Tensor:
        module.zero_grad(set_to_none=False)
        loss = module()
        return timed(loss.backward)

    return {
        "mesh": lambda: timed(lambda: group.average_gradients(plain, 1.0)),
        "all_reduce": lambda: timed(flat),
        "DDP": lambda: backward(parallel) - backward(plain),
        "bare": lambda: timed(lambda: dist.all_reduce(bare)),
    }


def serve(backend: str, path: str, rank: int, n_ranks: int, rounds: int, results: Any) -> None:
    """Be a rank."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    register()
    dist.init_process_group(backend, store=dist.FileStore(path, n_ranks), rank=rank, world_size=n_ranks)
    for name, shapes in MODELS.items():
        seconds: dict[str, list[Tensor]] = {}
        actions = ways(shapes, n_ranks)
        for _ in range(rounds + 2):
            for way, action in actions.items():
                took = action()
                slowest = took.clone()
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                dist.all_reduce(took)
                seconds.setdefault(way, []).append(torch.stack([slowest[0], took[1]]))
        if rank == 0:
            medians = {
                way: (1e3 * torch.stack(some[2:]).median(dim=0).values).tolist()
                for way, some in seconds.items()
            }
            results.send((name, medians))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    context = multiprocessing.get_context("spawn")
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, torch {torch.__version__}")
    for n_ranks, backend in product((2, 4), ("softs", "gloo")):
        begin, end = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                context.Process(target=serve, args=(backend, f"{folder}/store", rank, n_ranks, rounds, end))
                for rank in range(n_ranks)
            ]
            for process in processes:
                process.start()
            end.close()
            for _ in MODELS:
                name, medians = begin.recv()
                shown = ", ".join(
                    f"{way} {elapsed:.2f} ({used:.2f})" for way, (elapsed, used) in medians.items()
                )
                print(f"{n_ranks} ranks, {backend}, {name}: {shown}", flush=True)
            for process in processes:
                process.join()


if __name__ == "__main__":
    main()
