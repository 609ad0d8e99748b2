"""The number of the newest generation in memory that processes share: how datasets learn of a switch."""

from __future__ import annotations

import multiprocessing
import sys
from ctypes import c_longlong, c_ubyte, sizeof
from typing import Any

from .. import _core
from ..errors import ConfigError
from ..market.client import LeaveAfter
from .model import product_of

__all__ = ["GenerationProduct", "new_generation_value", "set_generation"]


def new_generation_value() -> c_longlong:
    """Return a number for all processes that it is given to when they start; 0."""
    # No lock: a process that is killed while it holds one would block all others.
    value: c_longlong = multiprocessing.Value("q", 0, lock=False)
    return value


def set_generation(value: c_longlong, generation: int) -> None:
    """Change it, and wake those who sleep because of it, in whatever process."""
    value.value = generation
    _core.wake(_bytes_of(value))


class GenerationProduct:
    """The product of the newest generation.

    Args:
        student_rank: whose samples they are.
        value: has the generation in `value`.

    Raises:
        ConfigError: it has no such number.
    """

    def __init__(self, student_rank: int, value: Any) -> None:
        # Reading a Value that has a lock takes it, and somebody who was killed may hold it.
        get_obj = getattr(value, "get_obj", None)
        self._value = value if get_obj is None else get_obj()
        self._rank = student_rank
        if not isinstance(getattr(self._value, "value", None), int):
            raise ConfigError(
                f"generation_value must be the generation_value of a StudentClient, got {type(value).__name__}"
            )
        # In one piece, for threads may read at the same time.
        self._seen = (0, product_of(0, student_rank))

    @property
    def can_wake(self) -> bool:
        """Whether the number lies where one can sleep until it changes."""
        return isinstance(self._value, c_longlong)

    def read(self) -> str:
        """Return the product."""
        generation, seen = self._value.value, self._seen
        if generation != seen[0]:
            seen = self._seen = (generation, product_of(generation, self._rank))
        return seen[1]

    def sleep_while(self, product: str, leave_after: LeaveAfter) -> None:
        """Sleep while it is this product, see `WantedProduct`."""
        # Read once, for it may change at any time.
        generation = int(self._value.value)
        if product_of(generation, self._rank) == product:
            leave_after(product, _bytes_of(self._value), _word_of(generation))

    def wake(self) -> None:
        """Wake all who sleep, in whatever process."""
        _core.wake(_bytes_of(self._value))


def _bytes_of(value: c_longlong) -> Any:
    return (c_ubyte * sizeof(value)).from_buffer(value)


def _word_of(generation: int) -> int:
    """Return the word that the kernel looks at, the first four bytes."""
    return int.from_bytes(
        generation.to_bytes(sizeof(c_longlong), sys.byteorder, signed=True)[:4], sys.byteorder
    )
