"""Measures the fastest schedule for a group on this machine."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from softs_fast import _kernels

_FLOAT32, _FLOAT64, _SUM, _MAX = 1, 0, 0, 3
_ONE_SHOT_SIZES = (1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18)
_CHUNK_SIZES = (1 << 17, 1 << 18, 1 << 19, 1 << 20)
_LARGE_BYTES = 1 << 22
_DEVICE_SIZES = (1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20)
#: Bytes of the largest reduction that `choose_device_schedule` measures.
LARGEST_DEVICE_SIZE = _DEVICE_SIZES[-1]


class Schedule(NamedTuple):
    """Sizes at which the schedule changes. Results do not depend on it; it must be the same on every rank.

    Attributes:
        one_shot_bytes: up to this size every rank reduces the whole tensor, with one wait for all ranks; above, each
            rank reduces a slice, with two waits.
        chunk_bytes: larger tensors are staged in pieces of this size, so that staged data stays in the caches.
    """

    one_shot_bytes: int
    chunk_bytes: int


def choose_schedule(group: _kernels.Group, staging_bytes: int) -> Schedule:
    """Measure, and return the schedule that is the fastest for the slowest rank. A collective call.

    Raises:
        PeerLost: a rank died during the measurement.
    """
    chunks = [size for size in _CHUNK_SIZES if size <= staging_bytes] or [staging_bytes]
    largest = chunks[-1]
    if group.size == 1:
        return Schedule(largest, largest)
    tensor = torch.zeros(_LARGE_BYTES // 4, dtype=torch.float32, device="cpu")

    def reduce(n_bytes: int) -> None:
        group.all_reduce([(tensor.data_ptr(), n_bytes // 4)], _FLOAT32, _SUM, 1.0, 0)

    def best_of(repeats: int, n_bytes: int, schedule: Schedule) -> float:
        group.set_schedule(*schedule)
        return best_time(group, repeats, lambda: reduce(n_bytes))

    best_of(1, _LARGE_BYTES, Schedule(0, largest))
    in_chunks = slowest(group, [best_of(2, _LARGE_BYTES, Schedule(0, size)) for size in chunks])
    # The smallest of those that are about as fast: it leaves most of the caches to the caller.
    chunk_bytes = next(
        size for size, seconds in zip(chunks, in_chunks, strict=True) if seconds <= 1.06 * min(in_chunks)
    )

    sizes = [size for size in _ONE_SHOT_SIZES if size <= chunk_bytes]
    at_once = slowest(group, [best_of(8, size, Schedule(size, chunk_bytes)) for size in sizes])
    in_parts = slowest(group, [best_of(8, size, Schedule(0, chunk_bytes)) for size in sizes])
    one_shot_bytes = 0
    for size, once, parts in zip(sizes, at_once, in_parts, strict=True):
        if once <= parts:
            one_shot_bytes = size
    return Schedule(one_shot_bytes, chunk_bytes)


def choose_device_schedule(
    group: _kernels.Group, chunk_bytes: int, reduce: Callable[[int, Schedule], None]
) -> Schedule:
    """Measure the limit of one shot on devices; pieces have the largest size. A collective call.

    Args:
        group: the ranks.
        chunk_bytes: the largest piece, bytes.
        reduce: all-reduces a number of bytes by a schedule, and returns when the reduction has completed.

    Raises:
        PeerLost: a rank died during the measurement.
    """
    if group.size == 1:
        return Schedule(chunk_bytes, chunk_bytes)
    sizes = [size for size in _DEVICE_SIZES if size <= chunk_bytes]
    schedules = [Schedule(chunk_bytes, chunk_bytes), Schedule(0, chunk_bytes)]
    reduce(sizes[0], schedules[1])
    once, parts = (
        slowest(group, [best_time(group, 5, partial(reduce, size, schedule)) for size in sizes])
        for schedule in schedules
    )
    fits = [size for size, at_once, in_parts in zip(sizes, once, parts, strict=True) if at_once <= in_parts]
    return Schedule(fits[-1] if fits else 0, chunk_bytes)


def best_time(group: _kernels.Group, repeats: int, run: Callable[[], object]) -> float:
    """Return the shortest time of a call on this rank, seconds; all ranks start together."""
    times = []
    for _ in range(repeats):
        group.barrier(0)
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def slowest(group: _kernels.Group, times: list[float]) -> list[float]:
    """Return the longest of each time among all ranks: the same list everywhere."""
    tensor = torch.tensor(times, dtype=torch.float64, device="cpu")
    group.all_reduce([(tensor.data_ptr(), tensor.numel())], _FLOAT64, _MAX, 1.0, 0)
    return [float(time) for time in tensor]
