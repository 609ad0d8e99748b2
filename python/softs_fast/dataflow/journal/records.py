"""The record of a save: of which flow it is, and what its master knew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, Packed, most, span
from ..master.rows.records import Name
from ..master.rows.saved import NEW, SavedGroup, SavedPartition, SavedRows

__all__ = ["CommonSave", "Record", "decode", "encode"]

_VERSION = "softs-fast dataflow save 2"


@dataclass(frozen=True)
class CommonSave:
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

    step: int
    name: str
    rows: SavedRows
    groups: tuple[SavedGroup, ...]
    n_read: dict[str, int]
    versions: dict[str, int]
    through: dict[str, int]
    n_failed: int


@dataclass(frozen=True)
class Record:
    """What a save says of itself.

    Attributes:
        lines: Lines of the declaration of its flow.
        save: Save, as its master knew it.
    """

    lines: tuple[str, ...]
    save: CommonSave


_Counts = Annotated[dict[Name, Count], most(1 << 16)]
_Names = Annotated[tuple[Name, ...], most(1 << 16)]
_Dropped = Annotated[dict[Annotated[str, most(1 << 16)], Count], most(1 << 16)]
_Partitions = Annotated[dict[Name, tuple[Count, tuple[_Dropped, Count]]], most(1 << 10)]
_Group = tuple[Name, tuple[Annotated[int, span(NEW, (1 << 63) - 1)], _Names]]


class _Saved(Message):
    """A record as it is written."""

    version: Annotated[str, most(64)]
    lines: Annotated[tuple[Annotated[str, most(1 << 20)], ...], most(1 << 20)]
    step: Count
    name: Annotated[str, most(255)]
    rows: tuple[Count, tuple[_Partitions, tuple[_Counts, _Counts]]]
    groups: Annotated[tuple[_Group, ...], most(1 << 22)]
    n_read: _Counts
    versions: _Counts
    through: _Counts
    n_failed: Count


_SAVED: Packed[_Saved] = Packed(_Saved, most_bytes=1 << 26, what="record of a save")


def encode(record: Record) -> bytes:
    """Return the bytes of a record.

    Raises:
        WireError: it is too long.
    """
    save, rows = record.save, record.save.rows
    partitions = {name: (one.used, (one.dropped, one.complete)) for name, one in rows.partitions.items()}
    saved = _Saved(
        *(_VERSION, record.lines, save.step, save.name),
        (rows.next_id, (partitions, (rows.n_taken, rows.n_calls))),
        tuple((one.partition, (one.first_id, one.used_by)) for one in save.groups),
        *(save.n_read, save.versions, save.through, save.n_failed),
    )
    return _SAVED.encode(saved)


def decode(body: bytes) -> Record:
    """Return the record with these bytes.

    Raises:
        WireError: it is of another version.
    """
    if _VERSION.encode() not in body[:64]:
        raise WireError("the record of this save is of another version, or none")
    saved = _SAVED.decode(body)
    next_id, (partitions, (n_taken, n_calls)) = saved.rows
    rows = SavedRows(
        next_id,
        {name: SavedPartition(used, *counts) for name, (used, counts) in partitions.items()},
        n_taken,
        n_calls,
    )
    groups = tuple(SavedGroup(partition, *rest) for partition, rest in saved.groups)
    counts = (saved.n_read, saved.versions, saved.through, saved.n_failed)
    return Record(saved.lines, CommonSave(saved.step, saved.name, rows, groups, *counts))
