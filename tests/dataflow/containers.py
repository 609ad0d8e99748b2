"""How much the objects of the package hold: the lengths of all containers that can be reached from some of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Containers of which the length is counted; tuples and frozen sets do not grow, but may hold what does.
GROWING = (dict, list, set, deque, bytearray)
#: Queues with at most so many elements count as bounded.
MOST_KEPT = 4096
PLAIN = (str, bytes, int, float, bool, type(None), type)


def lengths_of(*roots: object) -> dict[str, int]:
    """Return the summed lengths of all containers by where they are, such as "RowTable._groups[]".

    Attributes of classes of the package are followed, and what is inside of containers; nothing else is.
    """
    seen: dict[int, object] = {}
    found: dict[str, int] = {}
    waiting: list[tuple[str, object]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        name, one = waiting.pop()
        if isinstance(one, PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one
        # What has a largest length of some thousands is bounded, but may not have come to it yet.
        is_bounded = isinstance(one, deque) and one.maxlen is not None and one.maxlen <= MOST_KEPT
        if isinstance(one, GROWING) and not is_bounded:
            found[name] = found.get(name, 0) + len(one)
        waiting += _inside(name, one)
    return found


def _inside(name: str, one: object) -> Iterator[tuple[str, Any]]:
    if isinstance(one, Mapping):
        for key, value in list(one.items()):
            yield f"{name}[]", key
            yield f"{name}[]", value
    elif isinstance(one, (list, tuple, set, frozenset, deque)):
        yield from ((f"{name}[]", value) for value in list(one))
    if type(one).__module__.partition(".")[0] == "softs_fast":
        for key, value in attributes(one):
            yield f"{type(one).__name__}.{key}", value


def attributes(one: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object by name, with slots."""
    yield from list(getattr(one, "__dict__", {}).items())
    for kind in type(one).__mro__:
        slots: Iterable[str] = kind.__dict__.get("__slots__", ())
        for key in (slots,) if isinstance(slots, str) else slots:
            if hasattr(one, key):
                yield key, getattr(one, key)


def most(samples: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the largest length of each place in some samples."""
    found: dict[str, int] = {}
    for sample in samples:
        for name, n in sample.items():
            found[name] = max(n, found.get(name, 0))
    return found
