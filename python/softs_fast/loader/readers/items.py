"""Items of readers: tensors, and mappings, tuples and lists of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["call_on_all"]


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
