"""The interface of a medium, also for mediums that users write."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from ...process import Closing

__all__ = ["Data", "Kind", "Medium", "taken_apart"]

#: Data that can be written to a medium.
Data = bytes | bytearray | memoryview
#: Mediums that the native side knows.
Kind = Literal["shm", "file", "tcp", "tickets"]


def taken_apart(medium_cls: Callable[..., Medium]) -> tuple[Callable[..., Medium], dict[str, Any]]:
    """Return the class in a `functools.partial` of a class of mediums, and the arguments that it adds by name."""
    options: dict[str, Any] = {}
    while isinstance(medium_cls, functools.partial):
        options = {**medium_cls.keywords, **options}
        medium_cls = medium_cls.func
    return medium_cls, options


class Medium(Closing):
    """Slots of a fixed size that a client owns, and that suppliers write to by address and byte offset.

    Subclass it for another transport; `attach`, `write` and `read` are all that is needed.

    Args:
        address: name by which suppliers attach; None lets the medium choose one, where it can.
        slot_size: bytes of one slot; 0 if attached and not known.
        num_slots: number of slots; 0 if attached and not known.
        create: whether this side owns the slots.
        **kwargs: ignored, so that all mediums can be made with the same arguments.
    """

    native_kind: ClassVar[Kind | None] = None

    def __init__(
        self, address: str | None, slot_size: int, num_slots: int, create: bool = False, **kwargs: Any
    ) -> None:
        self.address = address
        self.slot_size = slot_size
        self.num_slots = num_slots
        self.is_owner = create

    @classmethod
    def slot_bytes(cls, slot_size: int) -> int:
        """Return the bytes from one slot to the next for samples of slot_size bytes; offsets are multiples of it."""
        return slot_size

    @classmethod
    @abstractmethod
    def attach(cls, address: str) -> Medium:
        """Open the medium that a client created under `address`, for writing."""

    @classmethod
    def attach_limited(
        cls, address: str, *, file_dirs: Sequence[str] = (), allow_remote: bool = False
    ) -> Medium:
        """Attach as `attach` does, for an address from an order, which a medium may have to limit.

        Args:
            address: Name of the medium.
            file_dirs: Directories for files that no client of softs-fast created; other files are refused.
            allow_remote: Whether it may be on another machine.

        Raises:
            As `attach`; SegmentError or ConfigError if the limits forbid it.
        """
        return cls.attach(address)

    @abstractmethod
    def write(self, byte_offset: int, data: Data) -> bool:
        """Store `data` at a byte offset; return False if the medium is gone or the range is outside of it."""

    @abstractmethod
    def read(self, slot_id: int) -> bytes:
        """Return the slot_size bytes of a slot."""

    def close(self) -> None:
        """Release the medium. Idempotent. Its memory or file stays until `unlink`."""

    def unlink(self) -> None:
        """Remove the memory or file of the medium; only the owner's call has an effect."""
