"""Items of readers: tensors, and mappings, tuples and lists of items; in memory that is pinned, from torch.

A copy to a device reads pinned memory after the call that began the copy has returned. Only torch's own allocator knows of
such copies, and does not use the memory again before they are done. So slots are never registered with CUDA: a supplier
would write to a slot while the device still reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["call_on_all", "empty_pinned", "pinned"]


def call_on_all(item: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Return an item of the same form with what a method of each tensor returns; objects that have it count as tensors."""
    if hasattr(item, method):
        return getattr(item, method)(*args, **kwargs)
    if isinstance(item, Mapping):
        return {name: call_on_all(value, method, *args, **kwargs) for name, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(call_on_all(value, method, *args, **kwargs) for value in item))
    if isinstance(item, list | tuple):
        return type(item)(call_on_all(value, method, *args, **kwargs) for value in item)
    return item


def empty_pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in pinned memory."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)


def pinned(item: Any) -> Any:
    """Return a batch with all tensors copied to pinned memory; a method `pin_memory` is called, as torch does it."""
    return call_on_all(item, "pin_memory")
