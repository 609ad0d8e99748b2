"""Checks of what users give, with errors that name the remedy."""

from __future__ import annotations

import difflib
import pickle
from collections.abc import Collection
from typing import Any

from ..errors import ConfigError

__all__ = ["check_picklable", "unknown", "whole"]

_MAX_SHOWN = 8
_MAX_CLOSE = 3


class _Discard:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


def check_picklable(value: object, what: str, remedy: str) -> None:
    """Check that a value can be sent to another process.

    Raises:
        ConfigError: it cannot; the text says what to give instead.
    """
    try:
        pickle.Pickler(_Discard(), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:
        raise ConfigError(f"{what} cannot be sent to another process: {error}; {remedy}") from error


def unknown(what: str, name: str, known: Collection[str]) -> ConfigError:
    """Return the error for a name that is not known, with those that are close to it, or else with the first ones."""
    close = difflib.get_close_matches(name, known, n=_MAX_CLOSE, cutoff=0.5)
    if close:
        return ConfigError(f"unknown {what} {name!r}; did you mean {' or '.join(map(repr, close))}?")
    shown = [repr(one) for one in list(known)[:_MAX_SHOWN]]
    rest = f" and {len(known) - _MAX_SHOWN} others" if len(known) > _MAX_SHOWN else ""
    return ConfigError(f"unknown {what} {name!r}; have {', '.join(shown) or 'none'}{rest}")


def whole(name: str, value: object, least: int) -> int:
    """Return a whole number.

    Raises:
        ConfigError: it is none, or less than `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
    return value
