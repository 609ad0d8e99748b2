"""Samples through a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from ... import _core
from ...errors import ConfigError
from .segment import SegmentMedium

__all__ = ["FilesystemMedium"]


class FilesystemMedium(SegmentMedium):
    """Slots in a file, for suppliers that share a file system.

    Args:
        address: Path of the file, a str. Missing directories are made. An existing file is overwritten, unless a live
            client of softs-fast owns it or it is a symbolic link.
        slot_size: Bytes of one slot.
        num_slots: Number of slots.
        create: Whether to create the file rather than attach to it. All of its blocks are reserved at once.
        file_dirs: Directories that a file must lie in to be attached unless a client of softs-fast created it; the
            default allows every path.
        slot_stride: Bytes from one slot to the next in a file that is created; default: slot_size.
        **kwargs: Ignored.

    Raises:
        ConfigError: the address is not a str, or the sizes are out of range.
        SegmentError: the file does not exist, may not be opened, is in use by another client, or does not
            fit on the disk.
    """

    native_kind = "file"

    def __init__(
        self,
        address: str | None,
        slot_size: int,
        num_slots: int,
        create: bool = False,
        *,
        file_dirs: Sequence[str] | None = None,
        slot_stride: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(address, str):
            raise ConfigError(f"address must be the path of a file as a str, have {address!r}")
        if create:
            segment = _core.Segment.create_file(address, slot_size, num_slots, slot_stride)
        else:
            segment = _core.Segment.attach_file(address, None if file_dirs is None else list(file_dirs))
        super().__init__(segment, address, slot_size, num_slots, create, **kwargs)
        self.path = Path(address)

    @classmethod
    def attach(cls, address: str) -> Self:
        """Attach to the file of a client of softs-fast or of softs, in any directory.

        Raises:
            SegmentError: it does not exist, is no regular file, or is damaged.
        """
        return cls(address=address, slot_size=0, num_slots=0, create=False)

    @classmethod
    def attach_limited(
        cls, address: str, *, file_dirs: Sequence[str] = (), allow_remote: bool = False
    ) -> Self:
        """Attach as `attach` does, for an address from an order: a file of our own user and no symbolic link."""
        return cls(address=address, slot_size=0, num_slots=0, create=False, file_dirs=file_dirs)
