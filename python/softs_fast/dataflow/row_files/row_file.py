"""The file of a common save with what functions have made: values in pieces, an index behind them, and checksums.

The index says which bytes are which column of which group. If the file is cut short or changed, what has another
checksum is left out, and all if that is the index. Nothing in it is run.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from ...errors import FlowError, WireError
from ..moves.packed import Packed, unpack
from ..moves.places import Form, form_of_wire
from ..rows.made import Bound, MadeGroup
from ..values import Value
from ..wire.checks import Check, integer, listing, table, tag, text
from .layout import END, MAGIC, MOST_INDEX, TAIL, Integers, ends_of, tail_checksum

__all__ = ["TAGS", "Column", "RowFile"]

_MOST_GROUPS = 1 << 22


@dataclass(frozen=True)
class Column:
    """Values of one column.

    Attributes:
        name: of the column.
        ids: of the rows, group by group.
        values: of each row.
    """

    name: str
    ids: tuple[int, ...]
    values: list[Value]


@dataclass(frozen=True)
class _Piece:
    """Where some values of a column are.

    Attributes:
        column: its name.
        start: of the first byte in the file.
        groups: first ids of their groups.
        forms: see `Packed`, like the next two.
        checksums: of the bytes of each group.
    """

    column: str
    start: int
    groups: tuple[int, ...]
    forms: tuple[Form, ...]
    form_of: Integers
    n_bytes: Integers
    checksums: tuple[int, ...]


class RowFile:
    """A file that `RowFileWriter` has written.

    Args:
        path: of the file.

    Attributes:
        groups: what was made, by the first id.
        bound: of their age.
        pieces: of each its column, and the first ids of its groups.

    Raises:
        WireError: it is no such file, or its index is damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.bound, groups, pieces = _index(_read_index(file.fileno(), size), size)
        self.groups = {one.first_id: one for one in groups}
        self.pieces = tuple((one.column, one.groups) for one in pieces)
        self._pieces = pieces

    def columns(self, wanted: Sequence[MadeGroup], pieces: Iterable[int]) -> Iterator[Column]:
        """Yield columns of groups, in pieces; what is damaged is left out.

        Args:
            wanted: groups of this file.
            pieces: numbers of the pieces that are read.

        Raises:
            OSError: the file cannot be read.
        """
        sizes = {one.first_id: one.n_rows for one in wanted}
        with self.path.open("rb") as file:
            for piece in [self._pieces[number] for number in pieces if number < len(self._pieces)]:
                n_rows = [self.groups[one].n_rows for one in piece.groups]
                if any(first_id in sizes for first_id in piece.groups):
                    yield from self._piece(file.fileno(), piece, n_rows, sizes)

    def _piece(
        self, descriptor: int, piece: _Piece, n_rows: Sequence[int], wanted: dict[int, int]
    ) -> Iterator[Column]:
        data = np.zeros(int(piece.n_bytes.sum()), np.uint8)
        _read(descriptor, data.data, piece.start)
        ends, rows = ends_of(piece.n_bytes, n_rows), np.cumsum([0, *n_rows])
        kept: list[int] = []
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if piece.groups[number] not in wanted:
                continue
            if zlib.crc32(data.data[start:end]) == piece.checksums[number]:
                kept.append(number)
        if not kept:
            return
        which = np.concatenate([np.arange(rows[one], rows[one + 1]) for one in kept])
        n_bytes, starts = piece.n_bytes[which], [0, *ends]
        if len(kept) < len(n_rows):
            data = np.concatenate([data[starts[one] : ends[one]] for one in kept])
        ids = tuple(
            row_id for one in kept for row_id in range(piece.groups[one], piece.groups[one] + n_rows[one])
        )
        try:
            values = unpack(Packed(piece.forms, piece.form_of[which], n_bytes, data))
        except (WireError, FlowError, RuntimeError):
            return  # such as a dtype that this version of torch lacks
        yield Column(piece.column, ids, values)


def _read(descriptor: int, out: memoryview, start: int) -> None:
    """Read bytes of a file; what is behind its end is left as it is, and has another checksum."""
    while out:
        n = os.preadv(descriptor, [out], start)
        if not n:
            return
        out, start = out[n:], start + n


def _read_index(descriptor: int, size: int) -> bytes:
    head, tail = bytearray(len(MAGIC)), bytearray(TAIL.size)
    _read(descriptor, memoryview(head), 0)
    if head != MAGIC:
        raise WireError(f"it does not begin with {MAGIC.decode().strip()!r}")
    if size >= len(MAGIC) + TAIL.size:
        _read(descriptor, memoryview(tail), size - TAIL.size)
    start, n_bytes, checksum, of_tail, end = TAIL.unpack(tail)
    is_tail = end == END and of_tail == tail_checksum(start, n_bytes, checksum)
    if not is_tail or n_bytes > MOST_INDEX or start + n_bytes + TAIL.size != size:
        raise WireError(f"its {size} bytes do not end with an index; it is cut short, or was changed")
    index = bytearray(n_bytes)
    _read(descriptor, memoryview(index), start)
    if zlib.crc32(index) != checksum:
        raise WireError(f"its index of {n_bytes} bytes was changed")
    return bytes(index)


_COUNT = integer(0, (1 << 63) - 1)
_NAME = text(1 << 10)
_NAMES = listing(_NAME, 1 << 16)
#: Tags of a row.
TAGS = table(_NAME, tag, 1 << 10)
_GROUP: tuple[Check, ...] = (
    *(_COUNT, integer(1, 1 << 20), _COUNT, _COUNT, _NAMES, _NAMES),
    *(listing(TAGS, 1 << 20), table(_NAME, _COUNT, 1 << 16)),
)


def _group(name: str, value: Any) -> MadeGroup:
    if type(value) is not list or len(value) != len(_GROUP):
        raise WireError(f"{name} is {repr(value)[:60]}; need what was made of a group")
    made = MadeGroup(*(check(name, one) for check, one in zip(_GROUP, value, strict=True)))
    if len(made.tags) != made.n_rows:
        raise WireError(f"{name} has {made.n_rows} rows and tags of {len(made.tags)}")
    return made


def _piece(name: str, value: Any) -> _Piece:
    if type(value) is not list or len(value) != 7:
        raise WireError(f"{name} is {repr(value)[:60]}; need a piece of a column")
    column, start, groups, forms, form_of, n_bytes, checksums = value
    for one in (form_of, n_bytes):
        if type(one) is not bytes or len(one) % 8:
            raise WireError(f"{name} has {repr(one)[:60]}; need integers of 8 bytes")
    return _Piece(
        _NAME(name, column),
        _COUNT(name, start),
        listing(_COUNT, _MOST_GROUPS)(name, groups),
        listing(lambda _, form: form_of_wire(form), 1 << 24)(name, forms),
        np.frombuffer(form_of, "<i8").astype(np.int64),
        np.frombuffer(n_bytes, "<i8").astype(np.int64),
        listing(integer(0, (1 << 32) - 1), _MOST_GROUPS)(name, checksums),
    )


def _index(data: bytes, size: int) -> tuple[Bound, tuple[MadeGroup, ...], tuple[_Piece, ...]]:
    """Return what an index says; each field is checked, so that nothing larger than the file is allocated."""
    try:
        found = msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogatepass")
    except (TypeError, ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireError(f"its index is none: {error}") from None
    if type(found) is not list or len(found) != 4:
        raise WireError("its index is none of this version")
    bound = Bound(_COUNT("age", found[0]), _COUNT("window", found[1]))
    groups = listing(_group, _MOST_GROUPS)("groups", found[2])
    pieces = listing(_piece, _MOST_GROUPS)("pieces", found[3])
    n_rows = {one.first_id: one.n_rows for one in groups}
    for piece in pieces:
        n = sum(n_rows.get(one, -1) for one in piece.groups)
        is_sound = n == len(piece.n_bytes) == len(piece.form_of) and len(piece.checksums) == len(piece.groups)
        if not (is_sound and all(one in n_rows for one in piece.groups)):
            raise WireError(f"its index has a piece of {piece.column} with other rows than its groups")
        sizes = [int(one) for one in piece.n_bytes]
        if min(sizes, default=0) < 0 or piece.start + sum(sizes) > size:
            raise WireError(f"its index has a piece of {piece.column} that is not in its {size} bytes")
    return bound, groups, pieces
