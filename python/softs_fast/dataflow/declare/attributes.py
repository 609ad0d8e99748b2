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
        owner: Any object; its `__slots__` count too.

    Yields:
        A name such as `net`, `nets[0]` or `nets['critic'][1]`, and the value.
    """
    # Copies, here and below, each made at once: a thread of the owner may add to them meanwhile.
    own = getattr(owner, "__dict__", None)
    for name, value in list(own.items()) if isinstance(own, dict) else ():
        yield from _elements(name, value, ())
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(owner, name):
                yield from _elements(name, getattr(owner, name), ())


def _elements(path: str, value: Any, inside: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        items = ((f"[{key!r}]", one) for key, one in list(value.items()) if type(one) not in _LEAVES)
    elif isinstance(value, (list, tuple, deque)):
        items = ((f"[{number}]", one) for number, one in enumerate(list(value)) if type(one) not in _LEAVES)
    else:
        yield path, value
        return
    if id(value) not in inside:
        for part, one in items:
            yield from _elements(path + part, one, (*inside, id(value)))
