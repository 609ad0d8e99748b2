"""Mediums of the API that softs' README describes: the default one, and the base class for mediums of your own.

A student owns a medium and reads from it; workers write to it by `buf_name` and the offset of a slot,
`slot_id * slot_stride`. Give a medium to `StudentClient(medium=...)`. Workers open it by its `buf_name`:

* The memory of a `SharedMemoryManager` needs nothing else.
* If `buf_name` is the path of a regular file, a worker maps the file and writes to it, but only in the directories of
  `Worker(file_dirs=[...])`.
* For anything else, write a `softs_fast.market.Medium` with `attach` and `write`, and give its class to
  `Worker(medium_cls=...)`.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

from .errors import ConfigError, SegmentError
from .market import Medium as MarketMedium
from .market import ShmMedium
from .process import Closing

__all__ = ["Medium", "MediumBase", "SharedMemoryManager", "market_medium"]


@runtime_checkable
class Medium(Protocol):
    """The interface that a student needs of a medium; `MediumBase` documents each member."""

    @property
    def buf_name(self) -> str: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def slot_stride(self) -> int: ...
    def read_slot_tensors(self, slot_id: int) -> bytes: ...
    def close(self) -> None: ...
    def unlink(self) -> None: ...


class MediumBase(Closing):
    """Base class for mediums of your own.

    A student's `close` calls `close` and then `unlink`, both once. Buffers of Python files, such as one of
    ``open(path, "w+b")``, are dropped before each read, so that no stale bytes are returned, if the file is an
    attribute of the medium.
    """

    @property
    @abstractmethod
    def buf_name(self) -> str:
        """Name by which workers open it, at most 1024 bytes of UTF-8."""

    @property
    @abstractmethod
    def slot_count(self) -> int:
        """Number of slots."""

    @property
    @abstractmethod
    def slot_stride(self) -> int:
        """Bytes from one slot to the next; the size of a sample."""

    @abstractmethod
    def read_slot_tensors(self, slot_id: int) -> bytes:
        """Return the slot_stride bytes of a slot."""

    @abstractmethod
    def close(self) -> None:
        """Release the medium; its memory or file stays until `unlink`."""

    @abstractmethod
    def unlink(self) -> None:
        """Remove the memory or file of the medium."""


class SharedMemoryManager(MediumBase):
    """Slots in POSIX shared memory.

    Args:
        slot_count: number of slots.
        slot_stride: bytes of one slot.
        read_only: True: create slots and read them; False: attach to the slots of another process and write to them.
        run_id: the shared memory is called ``sl_`` and this; needed to attach, default when creating: 16 hexadecimal
            digits.

    Raises:
        ConfigError: attaching without a run_id, a malformed one, or sizes that are out of range.
        SegmentError: the name is taken, does not exist, belongs to another user, or there is not enough memory; there
            are fewer slots, or slots of another size, than the arguments say.

    Example:
        >>> with SharedMemoryManager(slot_count=2, slot_stride=4, read_only=True) as student:
        ...     with SharedMemoryManager(2, 4, read_only=False, run_id=student.run_id) as worker:
        ...         worker.write_slot(1, b"abcd")
        ...     student.read_slot_tensors(1)
        ...     student.unlink()
        b'abcd'
    """

    def __init__(self, slot_count: int, slot_stride: int, read_only: bool, run_id: str | None = None) -> None:
        if run_id is None and not read_only:
            raise ConfigError(
                "run_id is needed to attach; it is that of the SharedMemoryManager that created the slots"
            )
        self._read_only = read_only
        name = None if run_id is None else f"{_PREFIX}{run_id}"
        self._medium = ShmMedium(name, slot_stride, slot_count, create=read_only)
        have = self._medium._segment.slots_len
        if not read_only and have < slot_count * slot_stride:
            self._medium.close()
            raise SegmentError(
                f"shared memory {name!r} has {have} bytes of slots, need {slot_count} slots of {slot_stride} bytes"
            )

    @property
    def buf_name(self) -> str:
        """Name of the shared memory."""
        return str(self._medium.address)

    @property
    def run_id(self) -> str:
        """The `run_id` to attach with."""
        return self.buf_name.removeprefix(_PREFIX)

    @property
    def read_only(self) -> bool:
        """Whether this side created the slots and reads them."""
        return self._read_only

    @property
    def slot_count(self) -> int:
        """Number of slots."""
        return self._medium.num_slots

    @property
    def slot_stride(self) -> int:
        """Bytes of one slot."""
        return self._medium.slot_size

    def read_slot_tensors(self, slot_id: int) -> bytes:
        """Copy a slot out.

        Raises:
            SegmentError: there is no such slot, or the memory is closed.
        """
        return self._medium.read(self._checked(slot_id))

    def write_slot(self, slot_id: int, data: bytes | bytearray | memoryview) -> None:
        """Store one whole sample in a slot.

        Raises:
            ConfigError: `data` is not slot_stride bytes.
            SegmentError: this side is read_only, there is no such slot, or the memory is closed.
        """
        if self._read_only:
            raise SegmentError(f"shared memory {self.buf_name!r} is read_only on this side")
        n_bytes = memoryview(data).nbytes
        if n_bytes != self.slot_stride:
            raise ConfigError(f"a sample has {n_bytes} bytes, need slot_stride={self.slot_stride}")
        self._medium._segment.write(self._checked(slot_id) * self.slot_stride, data)

    def close(self) -> None:
        """Unmap the slots. Idempotent."""
        self._medium.close()

    def unlink(self) -> None:
        """Remove the name, if this side created it. Idempotent."""
        self._medium.unlink()

    def _checked(self, slot_id: int) -> int:
        if not 0 <= slot_id < self.slot_count:
            raise SegmentError(f"there is no slot {slot_id}, only 0 to {self.slot_count - 1}")
        return slot_id


def market_medium(medium: Medium, slot_count: int, slot_size: int) -> MarketMedium:
    """Return a medium of the market with the slots of a student's medium.

    Args:
        medium: owner of the slots.
        slot_count: number of slots that it must have.
        slot_size: bytes that each slot must have.

    Raises:
        ConfigError: it is no medium, or its slots differ in number or size.
    """
    if not isinstance(medium, Medium):
        missing = [name for name in _NEEDED if not hasattr(medium, name)]
        raise ConfigError(
            f"medium of type {type(medium).__name__} lacks {', '.join(missing)}; derive it from MediumBase"
        )
    if (medium.slot_count, medium.slot_stride) != (slot_count, slot_size):
        raise ConfigError(
            f"medium has {medium.slot_count} slots of {medium.slot_stride} bytes, need slot_count={slot_count} of "
            f"{slot_size} bytes, which is what batch_config makes"
        )
    if isinstance(medium, SharedMemoryManager):
        if not medium.read_only:
            raise ConfigError(
                "the medium of a student is one that it created: SharedMemoryManager(..., read_only=True)"
            )
        return medium._medium
    return _Adapter(medium)


class _Adapter(MarketMedium):
    """Adapts a medium that a user wrote to the market's interface, on the student's side."""

    def __init__(self, medium: Medium) -> None:
        name = medium.buf_name
        # Absolute, because workers run in other directories.
        address = os.path.abspath(name) if os.path.isfile(name) else name
        super().__init__(address, medium.slot_stride, medium.slot_count, create=True)
        self._medium = medium
        self._is_unlinked = self._is_closed = False

    @classmethod
    def attach(cls, address: str) -> MarketMedium:
        """Raise SegmentError: workers open the medium that `address` names themselves."""
        raise ConfigError(f"medium {address!r} has no side for workers")

    def write(self, byte_offset: int, data: Any) -> bool:
        """Raise SegmentError: a student only reads."""
        return False

    def read(self, slot_id: int) -> bytes:
        """The bytes of a slot, all of them read during this call."""
        for value in getattr(self._medium, "__dict__", {}).values():
            if isinstance(value, io.BufferedRandom | io.BufferedReader) and not value.closed:
                # Only a seek from the end drops the bytes that were read ahead.
                value.seek(0, os.SEEK_END)
        return self._medium.read_slot_tensors(slot_id)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._medium.close()

    def unlink(self) -> None:
        if not self._is_unlinked:
            self._is_unlinked = True
            self._medium.unlink()


_PREFIX = "sl_"
_NEEDED = ("buf_name", "slot_count", "slot_stride", "read_slot_tensors", "close", "unlink")
