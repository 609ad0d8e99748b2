"""The record of a save: of which flow it is, and what its master knew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from ...errors import WireError
from ..rows.saved import NEW, SavedGroup, SavedPartition, SavedRows
from ..wire.checks import Check, integer, listing, pair, table, text

__all__ = ["CommonSave", "Record", "decode", "encode"]

_VERSION = "softs-fast dataflow save 2"
#: Bytes of a record.
_MOST_BYTES = 1 << 26


@dataclass(frozen=True)
class CommonSave:
    """A common save: a flow can go on from there.

    Attributes:
        step: how many steps are complete.
        name: of the folder with tensors.
        rows: their counts.
        groups: that are not complete, in their order.
        n_read: elements that were read of each source.
        versions: of the weights of roles, by name.
        through: steps that each training function has done.
        n_failed: groups that have failed.
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
        lines: of the declaration of its flow.
        save: what its master knew.
    """

    lines: tuple[str, ...]
    save: CommonSave


_COUNT = integer(0, (1 << 63) - 1)
_NAME = text(1 << 10)
_COUNTS = table(_NAME, _COUNT, 1 << 16)


def _partition(name: str, value: Any) -> SavedPartition:
    used, (dropped, complete) = pair(_COUNT, pair(table(text(1 << 16), _COUNT, 1 << 16), _COUNT))(name, value)
    return SavedPartition(used, dropped, complete)


def _rows(name: str, value: Any) -> SavedRows:
    counts = pair(_COUNTS, _COUNTS)
    next_id, (partitions, (n_taken, n_calls)) = pair(_COUNT, pair(table(_NAME, _partition, 1 << 10), counts))(
        name, value
    )
    return SavedRows(next_id, partitions, n_taken, n_calls)


def _group(name: str, value: Any) -> SavedGroup:
    partition, (first_id, used_by) = pair(_NAME, pair(integer(NEW, (1 << 63) - 1), listing(_NAME, 1 << 16)))(
        name, value
    )
    return SavedGroup(partition, first_id, used_by)


_SAVE: dict[str, Check] = {
    "step": _COUNT,
    "name": text(255),
    "rows": _rows,
    "groups": listing(_group, 1 << 22),
    "n_read": _COUNTS,
    "versions": _COUNTS,
    "through": _COUNTS,
    "n_failed": _COUNT,
}


def encode(record: Record) -> bytes:
    """Return the bytes of a record.

    Raises:
        WireError: it is too long.
    """
    save = record.save
    rows = save.rows
    partitions = {name: [one.used, [one.dropped, one.complete]] for name, one in rows.partitions.items()}
    values = [
        *(_VERSION, record.lines),
        *(save.step, save.name, [rows.next_id, [partitions, [rows.n_taken, rows.n_calls]]]),
        [[one.partition, [one.first_id, one.used_by]] for one in save.groups],
        *(save.n_read, save.versions, save.through, save.n_failed),
    ]
    body: bytes = msgpack.packb(values, unicode_errors="surrogatepass")
    if len(body) > _MOST_BYTES:
        raise WireError(f"the record of a save has {len(body)} bytes; at most {_MOST_BYTES}")
    return body


def decode(body: bytes) -> Record:
    """Return the record with these bytes.

    Raises:
        WireError: it is of another version.
    """
    try:
        values = msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogatepass")
    except (TypeError, ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"it is no record of a save: {error}") from None
    match values:
        case [version, lines, *fields] if version == _VERSION and len(fields) == len(_SAVE):
            checked = zip(_SAVE.items(), fields, strict=True)
            save = CommonSave(**{name: check(name, value) for (name, check), value in checked})
            return Record(listing(text(1 << 20), 1 << 20)("lines", lines), save)
    raise WireError("the record of this save is of another version")
