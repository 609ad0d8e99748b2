"""Attributes of an object, with the elements of its lists, tuples and dicts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

__all__ = ["attributes_of"]

#: Elements of long lists that are not looked at: nothing is in them.
_LEAVES = frozenset({int, float, complex, bool, str, bytes, type(None)})


def attributes_of(owner: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object by name; those that are lists, tuples, deques or dicts by their elements.

    Args:
        owner: Object with a `__dict__`.

    Yields:
        A name such as `net`, `nets[0]` or `nets['critic'][1]`, and the value.
    """
    for name, value in vars(owner).items():
        yield from _elements(name, value, ())


def _elements(path: str, value: Any, inside: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items = ((f"[{key!r}]", one) for key, one in value.items() if type(one) not in _LEAVES)
    elif isinstance(value, (list, tuple, deque)):
        items = ((f"[{number}]", one) for number, one in enumerate(value) if type(one) not in _LEAVES)
    else:
        yield path, value
        return
    if id(value) not in inside:
        for part, one in items:
            yield from _elements(path + part, one, (*inside, id(value)))
