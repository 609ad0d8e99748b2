"""All-reduce among processes that share one CUDA device: our variants, gloo through the host, and plain copies.

Every figure is of processes on the same device: it shows the device's memory, and how the driver schedules the
processes, but no connection between devices. No figure tells how fast several GPUs are.

A time is from the call until the device is done, of the slowest rank of a round. Contenders alternate in one run.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from softs_fast import _kernels
from softs_fast.collectives import CudaStrategy, Schedule, slowest
from softs_fast.gpu import ranks
from softs_fast.gpu.checks.on_device import synchronize
from softs_fast.tensors import cuda

__all__ = ["measure"]

_SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 26)
_ROUNDS, _ROUNDS_OF_LARGE = 30, 7
_LARGE = 2 << 20
_STAGING = 8 << 20
# If processes share a device, kernels that wait for each other wait for the scheduler, so larger sizes make no sense.
_LARGEST_IN_KERNEL = 1 << 18
_DEVICE = 0
#: On the stand-in, of which no time means anything.
_STANDIN_SIZES, _STANDIN_ROUNDS = _SIZES[:2], 2


def measure(quick: bool) -> dict[str, Any]:
    """Return medians in microseconds, by number of ranks, size and contender, all marked "same-device".

    Args:
        quick: 2 ranks only, and not the largest size.

    Raises:
        AssertionError: a rank failed.
    """
    sizes = _STANDIN_SIZES if cuda.is_standin else _SIZES[:-1] if quick else _SIZES
    rows = [row for size in ((2,) if quick else (2, 4)) for row in _among(size, sizes)]
    return {
        "note": f"same-device: {_best(rows, sizes[0])}; {_best(rows, sizes[-1])}",
        "where": "same-device",
        "dtype": "float32",
        "rows": rows,
    }


def _best(rows: Sequence[dict[str, Any]], n_bytes: int) -> str:
    """Return the fastest of our variants of 2 ranks beside gloo, as text."""
    us = {row["what"]: row["us"] for row in rows if (row["ranks"], row["bytes"]) == (2, n_bytes)}
    ours = min(us[what] for what in us if "shot" in what)
    gloo = next(us[what] for what in us if "gloo" in what)
    return f"{n_bytes >> 10} KiB in {ours:.0f} us, gloo {gloo:.0f} us"


def _among(size: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure among `size` processes."""
    with (
        tempfile.TemporaryDirectory(prefix="sf") as folder,
        ranks.start(_rank, size, folder, sizes) as running,
    ):
        rows: list[dict[str, Any]] = []
        for _ in sizes:
            said = running.receive(0)
            if isinstance(said, ranks.Raised):
                raise AssertionError(f"rank 0: {said.trace}")
            rows += said
        for rank, ended in enumerate(running.results()):
            if isinstance(ended, ranks.Raised):
                raise AssertionError(f"rank {rank}: {ended.trace}")
        return rows


def _rank(say: Callable[[Any], None], rank: int, size: int, folder: str, sizes: Sequence[int]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)

    def joined(name: str, schedule: Schedule, in_kernel: bool = False) -> CudaStrategy:
        strategy = CudaStrategy(
            device=_DEVICE, staging_bytes=_STAGING, schedule=schedule, in_kernel=in_kernel, name=name
        )
        return strategy.init(rank, size, dist.group.WORLD)

    ways = {
        "one-shot": joined("one-shot", Schedule(_STAGING, _STAGING)),
        "two-shot": joined("two-shot", Schedule(0, _STAGING)),
        "one-shot, in kernel": joined("in-kernel", Schedule(_STAGING, _STAGING), in_kernel=True),
    }
    for n_bytes in sizes:
        rounds = _STANDIN_ROUNDS if cuda.is_standin else _ROUNDS if n_bytes < _LARGE else _ROUNDS_OF_LARGE
        times = _alternate(ways["one-shot"], _contenders(ways, n_bytes), rounds)
        if rank == 0:
            say([_row(size, n_bytes, name, own) for name, own in times.items()])
    for strategy in ways.values():
        strategy.close()
    dist.destroy_process_group()


def _row(size: int, n_bytes: int, what: str, seconds: Sequence[float]) -> dict[str, Any]:
    return {
        "ranks": size,
        "bytes": n_bytes,
        "what": what,
        "where": "same-device",
        "us": statistics.median(seconds) * 1e6,
        "us_range": [min(seconds) * 1e6, max(seconds) * 1e6],
    }


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
        synchronize(_DEVICE)

    def copy_of_peer() -> None:
        stream = cuda.current_stream(_DEVICE)
        for begin in range(0, n_bytes, _STAGING):
            part = min(_STAGING, n_bytes - begin)
            _kernels.cuda_copy(tensor.data_ptr() + begin, peer, part, stream)
        synchronize(_DEVICE)

    def run_of(strategy: CudaStrategy) -> Callable[[], None]:
        return lambda: run(strategy)

    found = {
        name: run_of(strategy)
        for name, strategy in ways.items()
        if n_bytes <= (_LARGEST_IN_KERNEL if "kernel" in name else 1 << 40)
    }
    return found | {"gloo, by way of the host": by_gloo, "one copy of a peer's memory": copy_of_peer}


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
