"""Samples through POSIX shared memory."""

from __future__ import annotations

from typing import Any, Self

from ... import _core
from ...configs import RaggedLayout
from ...errors import ConfigError
from .segment import SegmentMedium

__all__ = ["ShmMedium"]


class ShmMedium(SegmentMedium):
    """Slots in POSIX shared memory, for suppliers of the same user on the same machine.

    Args:
        address: Name of the segment; default when creating: ``sl_`` and 16 hexadecimal digits.
        slot_size: Bytes of one slot.
        num_slots: Number of slots.
        create: Whether to create the segment rather than attach to it. All of its memory is reserved at once.
        slot_stride: Bytes from one slot to the next in a segment that is created; default: slot_size, as peers of
            softs expect that use slot numbers. A `Client` has slots of a page or more begin on cache lines.
        ragged: Layout of ragged tensors in a segment that is created, `BatchConfig.ragged`, from which a link to other hosts
            knows how many bytes of a slot its sample has; of up to 128 tensors.
        **kwargs: Ignored.

    Raises:
        ConfigError: no address to attach to, a malformed name, sizes that are out of range, or a ragged layout of samples
            that are not slot_size long at most.
        SegmentError: the name is taken, does not exist, belongs to another user, or there is not enough
            shared memory.

    Example:
        >>> with ShmMedium(None, slot_size=4, num_slots=2, create=True) as medium:
        ...     medium.write(4, b"abcd"), medium.read(1)
        ...     medium.unlink()
        (True, b'abcd')
    """

    native_kind = "shm"

    def __init__(
        self,
        address: str | None,
        slot_size: int,
        num_slots: int,
        create: bool = False,
        *,
        slot_stride: int | None = None,
        ragged: RaggedLayout | None = None,
        **kwargs: Any,
    ) -> None:
        if create:
            native = None if ragged is None else ragged.native
            segment = _core.Segment.create_shm(address, slot_size, num_slots, slot_stride, native)
        elif address is None:
            raise ConfigError("address required when create=False")
        else:
            segment = _core.Segment.attach_shm(address)
        super().__init__(segment, segment.address, slot_size, num_slots, create, **kwargs)

    @classmethod
    def attach(cls, address: str) -> Self:
        """Attach to the segment of a client of softs-fast or of softs.

        Raises:
            ConfigError: the name is malformed.
            SegmentError: it does not exist, belongs to another user, or is damaged.
        """
        return cls(address=address, slot_size=0, num_slots=0, create=False)

    def ensure_linked(self) -> bool:
        """Restore the name if it was removed, as suppliers of softs on Python before 3.13 do when they exit.

        Returns:
            Whether it was missing.

        Raises:
            SegmentError: the name belongs to another segment now, or this is not the open owner.
        """
        return self._segment.ensure_linked()
