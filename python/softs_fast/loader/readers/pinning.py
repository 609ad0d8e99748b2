"""Pinned memory: slots that are registered with CUDA, and batches that are copied to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["pin", "pinned"]

logger = logging.getLogger(__name__)


def pin(address: int, n_bytes: int) -> Callable[[], None] | None:
    """Lock memory in place and register it with CUDA, which then treats tensors on it as pinned.

    Args:
        address: where it begins.
        n_bytes: its length.

    Returns:
        A function that takes the registration back, once; None, and a logged warning, where CUDA refuses.
    """
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(cudart.cudaHostRegister(address, n_bytes, 0))
    if code != _SUCCESS:
        logger.warning("CUDA cannot register %d bytes of slots (error %d): batches are copied", n_bytes, code)
        return None

    def unpin() -> None:
        # Nothing is left to do about an error: the process may be past the end of CUDA.
        cudart.cudaHostUnregister(address)

    return unpin


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


_SUCCESS = 0
