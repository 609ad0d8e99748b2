"""Items of readers in memory that is pinned, from torch.

A copy to a device reads pinned memory after the call that began the copy has returned. Only torch's own allocator knows of
such copies, and does not use the memory again before they are done. So slots are never registered with CUDA: a supplier
would write to a slot while the device still reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...tensors import call_on_all

__all__ = ["empty_pinned", "pinned"]


def empty_pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised tensor in pinned memory."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)


def pinned(item: Any) -> Any:
    """Return a batch with all tensors copied to pinned memory; a method `pin_memory` is called, as torch does it."""
    return call_on_all(item, "pin_memory")
