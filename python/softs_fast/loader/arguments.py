"""Checks of arguments, and the arguments of an older softs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from numbers import Real
from typing import Any, Concatenate, ParamSpec

from ..errors import ConfigError

__all__ = ["accepts_0_1_0", "check_at_least", "whole_number"]

P = ParamSpec("P")


def check_at_least(name: str, value: float, least: int) -> None:
    """Check the range of a number.

    Raises:
        ConfigError: it is below `least`, or not a number.
    """
    if not isinstance(value, Real) or not value >= least:
        raise ConfigError(f"{name} must be a number and at least {least}, got {value!r}")


def whole_number(name: str, value: Any, least: int) -> int:
    """Return a whole number of any type, such as one of numpy's, as an int.

    Raises:
        ConfigError: it is no whole number, or below `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise ConfigError(f"{name} must be a whole number and at least {least}, got {value!r}")
    return number


def accepts_0_1_0(
    init: Callable[Concatenate[Any, P], None],
) -> Callable[Concatenate[Any, P], None]:
    """Let a constructor with the arguments of softs 0.1.2 also take those of 0.1.0.

    0.1.0 had `max_retries` (a whole number, 10 by default) where 0.1.2 has `retry_delay` (seconds), and
    `retry_delay` after it, where 0.1.2 has `request_timeout`. It never gave up, so `max_retries` without
    `request_timeout` means no timeout.
    """

    @functools.wraps(init)
    def accept(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if len(args) in (6, 7) and type(args[5]) is int and args[5] >= 1:
            by_place = dict(zip(("max_retries", "retry_delay"), args[5:], strict=False))
            twice = by_place.keys() & kwargs.keys()
            if twice:
                raise TypeError(f"given both by position and by name: {', '.join(sorted(twice))}")
            args, kwargs = args[:5], {**kwargs, **by_place}
        if kwargs.get("max_retries") is not None and len(args) < 7:
            kwargs.setdefault("request_timeout", None)
        init(self, *args, **kwargs)

    return accept
