"""How a client creates its medium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...configs import RaggedLayout
from .base import Medium
from .filesystem import FilesystemMedium
from .shm import ShmMedium

__all__ = ["create_medium", "slot_stride"]

_PAGE, _LINE = 4096, 64


def create_medium(
    medium_cls: Callable[..., Medium],
    address: str | None,
    slot_size: int,
    num_slots: int,
    ragged: RaggedLayout | None,
) -> Medium:
    """Create the medium of a client; a class that a user has written gets only the arguments of softs.

    Raises:
        ConfigError: An argument is out of range, or `ragged` does not fit slot_size.
        SegmentError: The medium cannot be created.
    """
    more: dict[str, Any] = {}
    if (stride := slot_stride(medium_cls, slot_size)) != slot_size:
        more["slot_stride"] = stride
    if ragged is not None and medium_cls is ShmMedium:
        more["ragged"] = ragged
    return medium_cls(address=address, slot_size=slot_size, num_slots=num_slots, create=True, **more)


def slot_stride(medium_cls: Callable[..., Medium], slot_size: int) -> int:
    """Return the bytes from one slot of a client's medium to the next.

    Slots of a page or more begin on cache lines: copies of them are faster, and tensors on them are aligned. A medium
    that a user has written gets the stride of softs, slot_size.
    """
    if medium_cls in (ShmMedium, FilesystemMedium) and slot_size >= _PAGE:
        return -(-slot_size // _LINE) * _LINE
    return slot_size
