"""The bytes of a journal: a line that names the format, then records.

A record has a head, with its length, its checksum, and a checksum of these two, and a body. Each record is on disk
before anything follows from it, so only the last one can be cut short.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import msgpack

from ...errors import WireError
from ..rows.saved import NEW, SavedGroup, SavedPartition, SavedRows
from ..wire.checks import Check, integer, listing, pair, table, text

__all__ = ["MAGIC", "PAGE", "CommonSave", "Declared", "Record", "encode", "scan"]

MAGIC = b"softs-fast dataflow journal 1\n"
#: Bytes that reach a disk together, at least.
PAGE = 4096
#: Bytes of the body of a record.
_MOST_BYTES = 1 << 26
_HEAD = struct.Struct("<II")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class Declared:
    """Of which flow the journal is.

    Attributes:
        lines: of its declaration.
    """

    lines: tuple[str, ...]


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


Record = Declared | CommonSave

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
    if isinstance(record, Declared):
        values: list[Any] = ["declared", record.lines]
    else:
        rows = record.rows
        partitions = {name: [one.used, [one.dropped, one.complete]] for name, one in rows.partitions.items()}
        values = [
            *("save", record.step, record.name, [rows.next_id, [partitions, [rows.n_taken, rows.n_calls]]]),
            [[one.partition, [one.first_id, one.used_by]] for one in record.groups],
            *(record.n_read, record.versions, record.through, record.n_failed),
        ]
    body: bytes = msgpack.packb(values, unicode_errors="surrogatepass")
    if len(body) > _MOST_BYTES:
        raise WireError(f"a record of the journal has {len(body)} bytes; at most {_MOST_BYTES}")
    head = _HEAD.pack(len(body), zlib.crc32(body))
    return head + _CHECKSUM.pack(_of_head(head)) + body


def scan(data: bytes) -> tuple[list[Record], int]:
    """Return the records of a file, and how many bytes they and the first line take.

    What is behind them is a record that was cut short.

    Raises:
        WireError: the file is no journal of this version, or is damaged before its last record.
    """
    if MAGIC.startswith(data):
        return [], len(MAGIC) if data == MAGIC else 0
    if not data.startswith(MAGIC):
        raise WireError(f"it does not begin with {MAGIC.decode().strip()!r}")
    records: list[Record] = []
    start = len(MAGIC)
    while start + _HEAD.size + _CHECKSUM.size <= len(data):
        if not any(data[start:]):
            break  # a host that lost its power may leave zeros
        first = start + _HEAD.size + _CHECKSUM.size
        length, checksum = _HEAD.unpack_from(data, start)
        is_head = _CHECKSUM.unpack_from(data, start + _HEAD.size) == (
            _of_head(data[start : start + _HEAD.size]),
        )
        end, body = first + length, data[first : first + length]
        if is_head and length <= _MOST_BYTES and zlib.crc32(body) == checksum and end <= len(data):
            records.append(_decode(body, start))
            start = end
        elif (is_head and end >= len(data)) or _has_unwritten_head(data, start):
            break
        else:
            raise WireError(f"it is damaged at byte {start} of {len(data)}")
    return records, start


def _has_unwritten_head(data: bytes, start: int) -> bool:
    """Return whether a page with the head of the last record is zeros: its body may have reached the disk before."""
    first = start + _HEAD.size + _CHECKSUM.size
    page = (start // PAGE + 1) * PAGE
    is_unwritten = not any(data[start:page]) or (page < first and not any(data[page : page + PAGE]))
    return is_unwritten and not any(_is_record(data, at) for at in range(first, len(data)))


def _is_record(data: bytes, start: int) -> bool:
    first = start + _HEAD.size + _CHECKSUM.size
    if first > len(data) or _CHECKSUM.unpack_from(data, start + _HEAD.size)[0] != _of_head(
        data[start : start + _HEAD.size]
    ):
        return False
    length, checksum = _HEAD.unpack_from(data, start)
    return bool(zlib.crc32(data[first : first + length]) == checksum)


def _of_head(head: bytes) -> int:
    # Not that of zeros.
    return zlib.crc32(head, 1)


def _decode(body: bytes, start: int) -> Record:
    try:
        values = msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogatepass")
    except (TypeError, ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"the record at byte {start} is none: {error}") from None
    match values:
        case ["declared", lines]:
            return Declared(listing(text(1 << 20), 1 << 20)("lines", lines))
        case ["save", *fields] if len(fields) == len(_SAVE):
            checked = zip(_SAVE.items(), fields, strict=True)
            return CommonSave(**{name: check(name, value) for (name, check), value in checked})
    raise WireError(f"the record at byte {start} is none of this version")
