"""All-reduce among processes that share one CUDA device: our variants, gloo through the host, and plain copies.

`python -m benches.gpu.all_reduce` prints what `measure` returns. Every figure is of processes on the same device: it
shows the device's memory, and how the driver schedules the processes, but no connection between devices. No figure
tells how fast several GPUs are.

A time is from the call until the device is done, of the slowest rank of a round. Contenders alternate in one run.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from softs_fast import _kernels
from softs_fast.collectives import CudaStrategy, Schedule
from softs_fast.collectives.probe import slowest
from softs_fast.tensors import cuda

SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26)
RANKS = (2, 4)
STAGING = 8 << 20
# If processes share a device, kernels that wait for each other wait for the scheduler, so larger sizes make no sense.
LARGEST_IN_KERNEL = 1 << 18
_DEVICE = 0


def measure() -> dict[str, Any]:
    """Return medians in microseconds, by number of ranks, size and contender.

    Raises:
        RuntimeError: there is no CUDA device, or a rank failed.
    """
    if not cuda.n_devices():
        raise RuntimeError("no CUDA device, or no CUDA in this build")
    return {
        "name": "all_reduce",
        "where": "same-device",
        "device": _kernels.cuda_device_name(_DEVICE),
        "dtype": "float32",
        "rows": [row for size in RANKS for row in _run(size)],
    }


def _rank(rank: int, size: int, folder: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)

    def joined(name: str, schedule: Schedule, in_kernel: bool = False) -> CudaStrategy:
        strategy = CudaStrategy(
            device=_DEVICE, staging_bytes=STAGING, schedule=schedule, in_kernel=in_kernel, name=name
        )
        return strategy.init(rank, size, dist.group.WORLD)

    ways = {
        "one-shot": joined("one-shot", Schedule(STAGING, STAGING)),
        "two-shot": joined("two-shot", Schedule(0, STAGING)),
        "one-shot, in kernel": joined("in-kernel", Schedule(STAGING, STAGING), in_kernel=True),
    }
    rows = []
    for n_bytes in SIZES:
        contenders = _contenders(ways, n_bytes)
        times = _alternate(ways["one-shot"], contenders, rounds=30 if n_bytes <= 1 << 20 else 7)
        rows += [
            {
                "ranks": size,
                "bytes": n_bytes,
                "what": name,
                "where": "same-device",
                "us": statistics.median(own) * 1e6,
                "us_range": [min(own) * 1e6, max(own) * 1e6],
            }
            for name, own in times.items()
        ]
    for strategy in ways.values():
        strategy.close()
    dist.destroy_process_group()
    if rank == 0:
        pipe.send(rows)


def _contenders(ways: dict[str, CudaStrategy], n_bytes: int) -> dict[str, Callable[[], None]]:
    tensor = cuda.empty([n_bytes // 4], "float32", _DEVICE).zero_()
    first = ways["one-shot"]
    members = first._work._arena.members
    # What the next rank stages, through the pointer that this process has of it.
    peer = members[(first.rank + 1) % first.size].staged(0)

    def run(strategy: CudaStrategy) -> None:
        strategy.all_reduce(tensor)
        strategy.synchronize()

    def by_gloo() -> None:
        host = tensor.cpu() if tensor.is_cuda else tensor.clone()
        dist.all_reduce(host)
        tensor.copy_(host)
        _finish()

    def copy_of_peer() -> None:
        stream = cuda.current_stream(_DEVICE)
        for begin in range(0, n_bytes, STAGING):
            part = min(STAGING, n_bytes - begin)
            _kernels.cuda_copy(tensor.data_ptr() + begin, peer, part, stream)
        _finish()

    def run_of(strategy: CudaStrategy) -> Callable[[], None]:
        return lambda: run(strategy)

    found = {
        name: run_of(strategy)
        for name, strategy in ways.items()
        if n_bytes <= (LARGEST_IN_KERNEL if "kernel" in name else 1 << 40)
    }
    return found | {"gloo, by way of the host": by_gloo, "one copy of a peer's memory": copy_of_peer}


def _finish() -> None:
    if not cuda.is_standin:
        torch.cuda.synchronize(_DEVICE)


def _alternate(
    strategy: CudaStrategy, contenders: dict[str, Callable[[], None]], rounds: int
) -> dict[str, list[float]]:
    """Return seconds by contender and round, of the slowest rank."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for name, call in contenders.items():
            strategy.barrier()
            start = time.perf_counter()
            call()
            if number >= 2:
                times[name].append(time.perf_counter() - start)
    return {name: slowest(strategy._group, own) for name, own in times.items()}


def _run(size: int) -> list[dict[str, Any]]:
    """Measure among `size` processes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_rank, args=(rank, size, folder, there)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"ranks ended with {[process.exitcode for process in processes]}")
        rows: list[dict[str, Any]] = here.recv()
        return rows


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
