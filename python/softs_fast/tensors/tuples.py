"""Named tuples that code for plain tuples can make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

__all__ = ["made_as_tuples"]

_C = TypeVar("_C", bound=type[tuple[Any, ...]])


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
