"""Memory that is pinned, from torch.

A copy to a device reads it after the call that began the copy has returned. Only torch's own allocator knows of such
copies, and does not use the memory again before they are done. So slots are never registered with CUDA: a supplier
would write to a slot while the device still reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["empty_pinned", "pinned"]


def empty_pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in pinned memory."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def pinned(item: Any) -> Any:
    """Return a batch with all tensors copied to pinned memory; a method `pin_memory` is called, as torch does it."""
    if hasattr(item, "pin_memory"):
        return item.pin_memory()
    if isinstance(item, Mapping):
        return {name: pinned(value) for name, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(pinned, item))
    if isinstance(item, list | tuple):
        return type(item)(map(pinned, item))
    return item
