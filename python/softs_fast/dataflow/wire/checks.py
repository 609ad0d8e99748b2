"""Checks of what was decoded: each returns the value, or says which field is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import WireError

__all__ = [
    "Check",
    "integer",
    "listing",
    "pair",
    "table",
    "tag",
    "text",
]

#: Takes the name of a field and its value.
Check = Callable[[str, Any], Any]


def integer(least: int, most: int) -> Check:
    """An integer of this range."""

    def check(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise WireError(f"{name} is {_shown(value)}; need an integer from {least} to {most}")
        return value

    return check


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


def pair(first: Check, second: Check) -> Check:
    """Two values."""

    def check(name: str, value: Any) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            raise WireError(f"{name} is {_shown(value)}; need two values")
        return first(name, value[0]), second(name, value[1])

    return check


def _shown(value: object) -> str:
    return repr(value)[:60]
