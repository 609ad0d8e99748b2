"""The number of the newest generation in memory that processes share: how datasets learn of a switch."""

from __future__ import annotations

from ctypes import Structure, c_longlong, c_ubyte, c_uint32
from multiprocessing.sharedctypes import RawValue
from typing import Any

from .. import _core
from ..errors import ConfigError
from ..market import LeaveAfter
from .model import DIGEST_BYTES, product_of

__all__ = ["GenerationProduct", "SharedGeneration", "new_generation_value", "set_generation"]


class _ModelOf(Structure):
    """Which model a generation is."""

    _fields_ = [("generation", c_longlong), ("digest", c_ubyte * DIGEST_BYTES)]


class SharedGeneration(Structure):
    """A generation, and how often it was set: a generation may be the same again after another one, the count never is.

    Attributes:
        n_changes: modulo 2^32.
        value: the generation.
        models: entry n_changes % 2 is that of the generation; the other one may be half written.
    """

    _fields_ = [("n_changes", c_uint32), ("value", c_longlong), ("models", _ModelOf * 2)]


def new_generation_value() -> SharedGeneration:
    """Return a number for all processes that it is given to when they start; 0."""
    # No lock: a process that is killed while it holds one would block all others.
    # Not multiprocessing.Value: that sets the default start method of the program for good.
    value: SharedGeneration = RawValue(SharedGeneration)
    return value


def set_generation(value: SharedGeneration, generation: int, digest: bytes = bytes(DIGEST_BYTES)) -> None:
    """Change it, and wake all threads that sleep until it changes, in all processes.

    Args:
        value: the number; one thread at a time may change it.
        generation: the newest one.
        digest: `Model.digest` of its model.
    """
    entry = value.models[(value.n_changes + 1) % 2]
    entry.generation, entry.digest[:] = generation, digest
    value.value = generation
    _core.count_change(value)


class GenerationProduct:
    """The product of the newest generation, a `ProductSource`.

    Args:
        student_rank: Rank of the student that orders the samples.
        value: Object with the generation in `value`.

    Raises:
        ConfigError: it has no such number.
    """

    def __init__(self, student_rank: int, value: Any) -> None:
        # Reading a Value that has a lock takes it, and a process that was killed may hold it.
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
        """Whether changes are counted where a thread can sleep until the next one."""
        return isinstance(self._value, SharedGeneration)

    def model(self) -> tuple[str, bytes] | None:
        """Return the product and `Model.digest` of the newest generation; None for a number of the user."""
        value = self._value
        if not isinstance(value, SharedGeneration):
            return None
        while True:
            # An entry is written again only after the next change was counted.
            version = value.n_changes
            entry = value.models[version % 2]
            found = product_of(entry.generation, self._rank), bytes(entry.digest)
            if value.n_changes == version:
                return found

    def version(self) -> int:
        """Return the count of changes; of a number of the user the number itself, which must not be the same again."""
        value = self._value
        return int(value.n_changes if isinstance(value, SharedGeneration) else value.value)

    def read(self) -> str:
        """Return the product."""
        generation, seen = self._value.value, self._seen
        if generation != seen[0]:
            seen = self._seen = (generation, product_of(generation, self._rank))
        return seen[1]

    def sleep_while(self, version: int, product: str, leave_after: LeaveAfter) -> None:
        """Sleep while the generation was not set since, see `ProductSource`."""
        leave_after(product, self._value, version)

    def wake(self) -> None:
        """Wake all threads that sleep, in all processes."""
        _core.wake(self._value)
