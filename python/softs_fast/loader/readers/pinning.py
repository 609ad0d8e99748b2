"""Memory that is there already, made known to CUDA, so that copies to a GPU need no buffer in between."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

__all__ = ["pin"]

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


_SUCCESS = 0
