"""Modes of torch that mark the tensors made under them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .dtypes import import_torch

__all__ = ["for_later"]


@contextmanager
def for_later() -> Iterator[None]:
    """Make tensors that are handed out later, perhaps when the caller's mode is over.

    A tensor that is made under `torch.inference_mode` can never be saved for a backward pass, so within this block
    tensors are made as outside of that mode, without a graph.
    """
    torch = import_torch()
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
