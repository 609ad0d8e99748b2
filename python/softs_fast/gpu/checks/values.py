"""Values to reduce, and what the kernels of the host make of them."""

from __future__ import annotations

import itertools

import torch

from softs_fast import kernels

__all__ = ["CASTS", "DTYPES", "OPS", "expected", "values"]

_FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
_WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*_FLOATS, *_WHOLE, torch.bool]
OPS = ["sum", "mean", "min", "max"]
#: Dtypes of a tensor and of its reduction.
CASTS = [
    *itertools.product(_FLOATS, _FLOATS),
    *itertools.product([torch.int64, torch.int16, torch.uint8], [*_FLOATS, *_WHOLE]),
    (torch.bool, torch.bool),
]


def values(rank: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return any bits at all, half of them ordinary numbers; the same in every process."""
    chance = torch.Generator().manual_seed(7 * rank + count)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=chance)
    tensor = raw.view(dtype)
    if dtype.is_floating_point:
        tensor[::2] = torch.randn(len(tensor[::2]), generator=chance).to(dtype)
    return tensor


def expected(
    size: int, dtype: torch.dtype, count: int, op: str, out: torch.dtype, scale: float = 1.0
) -> torch.Tensor:
    """Return the reduction of the values of `size` ranks, made by the host."""
    result = torch.empty(count, dtype=out)
    kernels.reduce([values(rank, dtype, count) for rank in range(size)], result, op, scale=scale)
    return result
