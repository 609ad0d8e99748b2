"""The record of a save: of which flow it is, and what its master knew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, Packed, most
from ..master.rows.saved import Counts, SavedGroup, SavedRows

__all__ = ["CommonSave", "decode", "encode"]

_VERSION = "softs-fast dataflow save 3"


class CommonSave(Message):
    """A common save: a flow can go on from there.

    Attributes:
        step: Number of steps that are complete.
        name: Name of the folder with tensors.
        rows: Counts of the rows.
        groups: Groups that are not complete, in their order.
        n_read: Elements that were read of each source.
        versions: Versions of the weights of roles, by name.
        through: Steps that each training function has done.
        n_failed: Groups that have failed.
    """

    step: Count
    name: Annotated[str, most(255)]
    rows: SavedRows
    groups: Annotated[tuple[SavedGroup, ...], most(1 << 22)]
    n_read: Counts
    versions: Counts
    through: Counts
    n_failed: Count


class _Record(Message):
    """A record as it is written: its version, the lines of the declaration of its flow, and the save."""

    version: Annotated[str, most(64)]
    lines: Annotated[tuple[Annotated[str, most(1 << 20)], ...], most(1 << 20)]
    save: CommonSave


_RECORD: Packed[_Record] = Packed(_Record, most_bytes=1 << 26, what="record of a save")


def encode(lines: Sequence[str], save: CommonSave) -> bytes:
    """Return the bytes of a record.

    Args:
        lines: Lines of the declaration of the flow.
        save: Save, as its master knew it.

    Raises:
        WireError: it is too long.
    """
    return _RECORD.encode(_Record(_VERSION, tuple(lines), save))


def decode(body: bytes) -> tuple[tuple[str, ...], CommonSave]:
    """Return lines and save of the record with these bytes.

    Raises:
        WireError: it is of another version.
    """
    if _VERSION.encode() not in body[:64]:
        raise WireError("the record of this save is of another version, or none")
    found = _RECORD.decode(body)
    return found.lines, found.save
