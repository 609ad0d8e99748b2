"""Base of the mediums in shared memory and in files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ... import _core
from .base import Data, Medium

__all__ = ["SegmentMedium"]

logger = logging.getLogger(__name__)


class SegmentMedium(Medium):
    """A medium with slots in a native segment."""

    def __init__(
        self,
        segment: _core.Segment,
        address: str,
        slot_size: int,
        num_slots: int,
        create: bool,
        **kwargs: Any,
    ) -> None:
        # A segment of softs-fast records its slots; for one of softs the caller's values are used.
        slot_size, num_slots = slot_size or segment.slot_size, num_slots or segment.n_slots
        super().__init__(address, slot_size, num_slots, create, **kwargs)
        #: Bytes from one slot to the next.
        self.slot_stride = segment.slot_stride or slot_size
        self._segment = segment

    def is_named(self, number: int) -> bool:
        """Return whether an order that came with this number means this segment, and not another at the same address."""
        return number == 0 or self._segment.is_named(number)

    @property
    def is_gone(self) -> bool:
        """Whether the owner has removed it, so that no client will read what is written."""
        return self._segment.is_gone

    def write(self, byte_offset: int, data: Data) -> bool:
        """Store `data` at a byte offset.

        Args:
            byte_offset: Offset of the first byte in the memory of the slots.
            data: Any C-contiguous buffer.

        Returns:
            False, and a logged warning, if the medium is closed, was replaced, has no memory left, or the range is
            outside of it. Then nothing was written, and a supplier should attach again.
        """
        try:
            self._segment.write(byte_offset, data)
        except Exception as error:
            self._warn(byte_offset, error)
            return False
        return True

    def write_if(
        self, byte_offset: int, data: Data, may_write: Callable[[], bool], number: int = 0
    ) -> bool | None:
        """Lock the slot, and store `data` if its client still waits for it and `may_write` returns True.

        A client that has lost its broker names its segment by another number, and orders no slot again that is locked. So
        a supplier that is stopped before or within the copy never writes to a slot that is in use again.

        Args:
            byte_offset: Offset of the slot.
            data: As for `write`.
            may_write: Called once the slot is locked.
            number: By which the order names the segment; 0 where it does not.

        Returns:
            As `write`; None if it is too late.
        """
        try:
            return self._segment.write_locked(byte_offset, data, may_write, number) or None
        except Exception as error:
            self._warn(byte_offset, error)
            return False

    def _warn(self, byte_offset: int, error: Exception) -> None:
        # As text: a log record with the exception would keep this frame alive, and with it the segment.
        logger.warning("write to medium %r at offset %r failed: %s", self.address, byte_offset, str(error))

    def read(self, slot_id: int) -> bytes:
        """Copy a slot out.

        Returns:
            slot_size bytes.

        Raises:
            SegmentError: there is no such slot, or the medium is closed.
            OverflowError: slot_id is negative.
        """
        return self._segment.read(slot_id * self.slot_stride, self.slot_size)

    def read_head(self, slot_id: int, n_bytes: int) -> bytes:
        """Copy the first n_bytes of a slot out.

        Raises:
            As `read`.
        """
        return self._segment.read(slot_id * self.slot_stride, min(n_bytes, self.slot_size))

    def read_into(self, slot_id: int, buffer: Any, start: int = 0) -> None:
        """Copy a slot, or a part of it, into existing memory.

        Args:
            slot_id: number of the slot.
            buffer: writable and C-contiguous; its length is the number of bytes read, so give
                it slot_size - start bytes at most.
            start: first byte within the slot.

        Raises:
            ConfigError: the buffer is read-only or not contiguous.
            SegmentError: the slots end before the buffer does, or the medium is closed.
            OverflowError: slot_id is negative.
        """
        self._segment.read_into(slot_id * self.slot_stride + start, buffer)

    def close(self) -> None:
        """Unmap the slots and, as the owner, release the lock. Idempotent. The name stays until `unlink`."""
        self._segment.close()

    def unlink(self) -> None:
        """Remove the name, as the owner; peers that are attached stay attached. Idempotent.

        Raises:
            SegmentError: the system refuses to remove it.
        """
        if self.is_owner:
            self._segment.unlink()
