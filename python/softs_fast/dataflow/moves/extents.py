"""How many bytes a value takes in a store."""

from __future__ import annotations

from typing import Any

from ..values import n_bytes_of
from .places import ALIGNMENT, SEAL_BYTES, Place, seal_offset

__all__ = ["bytes_in_store", "extent_bytes"]


def extent_bytes(n_bytes: Any) -> Any:
    """Return how many bytes values take with their serial numbers; of integers, or arrays of them."""
    return -(-(seal_offset(0, n_bytes) + SEAL_BYTES) // ALIGNMENT) * ALIGNMENT


def bytes_in_store(value: Any) -> int:
    """Return how many bytes a value takes, or would take, in a store.

    Args:
        value: of a row, or its place.
    """
    if isinstance(value, Place):
        return int(extent_bytes(value.n_bytes))
    return int(extent_bytes(n_bytes_of(value)))
