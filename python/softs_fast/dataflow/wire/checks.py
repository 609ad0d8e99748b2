"""Checks of what was decoded: each returns the value, or says which field is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...errors import WireError
from ..moves.places import Place

__all__ = [
    "Check",
    "boolean",
    "integer",
    "listing",
    "number",
    "optional",
    "pair",
    "places",
    "seconds",
    "table",
    "tag",
    "text",
    "with_segments",
]

#: Takes the name of a field and its value.
Check = Callable[[str, Any], Any]

_MOST_COLUMNS = 1 << 12
_MOST_ROWS = 1 << 20
_MOST_SEGMENTS = 1 << 12


def integer(least: int, most: int) -> Check:
    """An integer of this range."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise WireError(f"{name} is {_shown(value)}; need an integer from {least} to {most}")
        return value

    return check


def number(name: str, value: Any) -> float:
    """A float or an integer; infinities and NaN are numbers that a function may return."""
    if type(value) is not float and type(value) is not int:
        raise WireError(f"{name} is {_shown(value)}; need a number")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """A time that has passed."""
    if not (type(value) is float and math.isfinite(value) and value >= 0):
        raise WireError(f"{name} is {_shown(value)}; need seconds, at least 0")
    return value


def boolean(name: str, value: Any) -> bool:
    """True or False."""
    if type(value) is not bool:
        raise WireError(f"{name} is {_shown(value)}; need True or False")
    return value


def text(most: int) -> Check:
    """Text of at most so many characters."""

    def check(name: str, value: Any) -> str:
        if type(value) is not str or len(value) > most:
            raise WireError(f"{name} is {_shown(value)}; need text of at most {most} characters")
        return value

    return check


def tag(name: str, value: Any) -> int | float | str | bool:
    """A small value of a row."""
    if type(value) in (int, float, bool) or (type(value) is str and len(value) <= 1 << 16):
        return value  # type: ignore[no-any-return]
    raise WireError(
        f"{name} is {_shown(value)}; need a number, True, False, or text of at most 65536 characters"
    )


def listing(item: Check, most: int) -> Check:
    """A list of at most so many items; it becomes a tuple."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise WireError(f"{name} is {_shown(value)}; need a list of at most {most}")
        return tuple(item(name, one) for one in value)

    return check


def table(key: Check, item: Check, most: int) -> Check:
    """A map of at most so many entries."""

    def check(name: str, value: Any) -> dict[Any, Any]:
        if type(value) is not dict or len(value) > most:
            raise WireError(f"{name} is {_shown(value)}; need a map of at most {most}")
        return {key(f"key of {name}", one): item(name, other) for one, other in value.items()}

    return check


def optional(item: Check) -> Check:
    """A value or None."""
    return lambda name, value: None if value is None else item(name, value)


def pair(first: Check, second: Check) -> Check:
    """Two values."""

    def check(name: str, value: Any) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            raise WireError(f"{name} is {_shown(value)}; need two values")
        return first(name, value[0]), second(name, value[1])

    return check


def places(name: str, value: Any) -> tuple[tuple[Place, ...], ...]:
    """Places of columns, as `with_segments` has made them: each row names its segment by its number in a list."""
    segments, columns = pair(
        listing(lambda _, one: one, _MOST_SEGMENTS),
        listing(listing(lambda _, one: one, _MOST_ROWS), _MOST_COLUMNS),
    )(name, value)
    index = integer(0, len(segments) - 1)
    # Few different addresses, many rows: each is decoded once.
    found: list[tuple[Place, ...]] = []
    for column in columns:
        made = []
        for row in column:
            if type(row) is not list or len(row) != 7:
                raise WireError(f"{name} has {_shown(row)}; need a place")
            made.append(Place.from_wire([row[0], segments[index(name, row[1])], *row[2:]]))
        found.append(tuple(made))
    return tuple(found)


def with_segments(columns: tuple[tuple[Place, ...], ...]) -> list[Any]:
    """Return places of columns for a message; each segment is named once."""
    numbers: dict[Any, int] = {}
    rows = []
    for column in columns:
        made = []
        for place in column:
            wire = place.as_wire()
            wire[1] = numbers.setdefault(place.segment, len(numbers))
            made.append(wire)
        rows.append(made)
    return [[segment.as_wire() for segment in numbers], rows]


def _shown(value: object) -> str:
    return repr(value)[:60]
