"""All-reduce among processes: the bits of the host's kernels, on every rank."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch

from softs_fast.collectives import CudaStrategy, Schedule
from softs_fast.gpu import ranks
from softs_fast.tensors import cuda

from .expect import expect_bits
from .on_device import Buffer
from .values import CASTS, DTYPES, OPS, expected, values

__all__ = [
    "ONE_SHOT",
    "STAGING",
    "TWO_SHOT",
    "among_four",
    "among_two",
    "check",
    "device_of",
    "in_kernel",
    "joined",
    "reduces_everything",
]

STAGING = 1 << 20
ONE_SHOT, TWO_SHOT = Schedule(STAGING, STAGING), Schedule(0, STAGING)
#: What a tensor of a check has at most.
_TENSOR_BYTES = 32 << 10
#: Reports to the process that started the ranks.
Say = Callable[[Any], None]


def among_two(quick: bool) -> dict[str, Any]:
    """Check all schedules of two processes."""
    return check(2, in_kernel=False)


def among_four(quick: bool) -> dict[str, Any]:
    """Check all schedules of four processes."""
    return check(4, in_kernel=False)


def in_kernel(quick: bool) -> dict[str, Any]:
    """Check the variant in which kernels of two processes wait for each other.

    How they wait does not depend on the dtype, so the quick check has one.
    """
    return check(2, in_kernel=True, dtypes=[torch.float32] if quick else DTYPES)


def check(size: int, *, in_kernel: bool, dtypes: Sequence[torch.dtype] = DTYPES) -> dict[str, Any]:
    """Check both schedules among `size` processes, which share device 0 if there is no other.

    Raises:
        AssertionError: a rank failed; the text has its traceback.
    """
    for schedule in (ONE_SHOT, TWO_SHOT):
        with tempfile.TemporaryDirectory(prefix="sf") as folder:
            ranks.run(reduces_everything, size, folder, schedule, in_kernel, dtypes)
    return {"note": f"{size} processes, one-shot and two-shot"}


def device_of(rank: int) -> int:
    """Return the number of a rank's device."""
    return rank % max(1, cuda.n_devices())


def joined(rank: int, size: int, folder: str, schedule: Schedule = TWO_SHOT, **more: Any) -> CudaStrategy:
    """Return the strategy of a rank, in its group."""
    strategy = CudaStrategy(
        device=device_of(rank), timeout_s=30, staging_bytes=STAGING, schedule=schedule, **more
    )
    return strategy.init(rank, size, folder)


def reduces_everything(
    say: Say,
    rank: int,
    size: int,
    folder: str,
    schedule: Schedule,
    in_kernel: bool,
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> None:
    """Reduce each dtype by each operation, and into each other dtype.

    Raises:
        CheckFailed: a bit differs from what the host makes of the same values.
    """
    with joined(rank, size, folder, schedule, in_kernel=in_kernel) as strategy:
        buffer = Buffer(2 * _TENSOR_BYTES, strategy.device)
        for dtype, op in itertools.product(dtypes, OPS):
            if (dtype, op) == (torch.bool, "mean"):
                continue
            for count in (1, 15, 17, 3001):
                tensor = buffer.place(values(rank, dtype, count))
                strategy.all_reduce(tensor, op)
                strategy.synchronize()
                expect_bits(tensor, expected(size, dtype, count, op, dtype), f"{op} of {count} {dtype}")
        for dtype, out in ((dtype, out) for dtype, out in CASTS if dtype in dtypes):
            tensor = buffer.place(values(rank, dtype, 501))
            # As bytes: of a bool, torch copies only whether it is zero.
            before = tensor.view(torch.uint8).cpu().clone()
            output = buffer.place(torch.zeros(501, dtype=out), _TENSOR_BYTES)
            op, scale = ("max", 1.0) if dtype is torch.bool else ("mean", 0.3)
            strategy.all_reduce(tensor, op, output=output, scale=scale)
            strategy.synchronize()
            expect_bits(output, expected(size, dtype, 501, op, out, scale), f"{op} of {dtype} into {out}")
            expect_bits(tensor.view(torch.uint8), before, "a tensor that is reduced into another one")
