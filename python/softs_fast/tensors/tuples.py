"""Tensors in mappings, tuples and lists, and named tuples that code for plain tuples can make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["call_on_all", "made_as_tuples"]

_C = TypeVar("_C", bound=type[tuple[Any, ...]])


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


def made_as_tuples(named: _C) -> _C:
    """Let a class of named tuples also be made of one list, tuple or iterator of its fields, as tuples are.

    Trainers move the tensors of a batch by `type(data)(move(each) for each in data)`.
    """
    # Replaced in place: torch takes a class for a named tuple only if its base is `tuple`.
    make = named.__new__

    def new(cls: Any, *fields: Any, **by_name: Any) -> Any:
        if len(fields) == 1 and not by_name and isinstance(fields[0], list | tuple | Iterator):
            fields = tuple(fields[0])
        return make(cls, *fields, **by_name)

    named.__new__ = new  # type: ignore[method-assign]
    return named
