"""Memory by its address: copies of many pieces in one native call, and tensors where bytes are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import _kernels

__all__ = ["copy_memory", "tensor_at"]

_Integers = np.ndarray[Any, np.dtype[np.int64]]


def copy_memory(targets: _Integers, sources: _Integers, sizes: _Integers) -> None:
    """Copy pieces of memory, without the GIL. The caller keeps all of it; targets do not overlap sources.

    Args:
        targets: int64 [pieces], addresses.
        sources: int64 [pieces], addresses.
        sizes: int64 [pieces], bytes; 0 where there is nothing, whatever the addresses are.
    """
    # Empty tensors may have no memory.
    is_there = sizes > 0
    if not is_there.all():
        targets, sources, sizes = targets[is_there], sources[is_there], sizes[is_there]
    if len(sizes):
        # Addresses of sources are counted from the lowest.
        lowest = int(sources.min())
        columns = (targets, sources - lowest, sizes)
        _kernels.snapshot_scatter(lowest, list(zip(*(one.tolist() for one in columns), strict=True)))


def tensor_at(address: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the tensor that begins at an address. The caller keeps the memory, which may be for reading alone."""
    n_items = 1
    for size in shape:
        n_items *= size
    if not n_items:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    memory = (ctypes.c_ubyte * (n_items * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))
