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

import numpy as np

from ....errors import FlowError, WireError
from ...master.rows.made import Bound, MadeGroup
from ...store.packed import Packed, unpack
from ...store.places import Form
from ...store.values import Value
from .layout import END, INDEX, MAGIC, MOST_INDEX, TAIL, Integers, ends_of, tail_checksum

__all__ = ["Column", "RowFile"]


@dataclass(frozen=True)
class Column:
    """Values of one column.

    Attributes:
        name: Name of the column.
        ids: Ids of the rows, group by group.
        values: Value of each row.
    """

    name: str
    ids: tuple[int, ...]
    values: list[Value]


@dataclass(frozen=True)
class _Piece:
    """A `Piece` with its integers."""

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
        path: Path of the file.

    Attributes:
        groups: Groups of which columns were made, by the first id.
        bound: Bound of their age.
        pieces: Column of each piece, and the first ids of its groups.

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


def _index(data: bytes, size: int) -> tuple[Bound, tuple[MadeGroup, ...], tuple[_Piece, ...]]:
    """Return what an index says; each field is checked, so that nothing larger than the file is allocated."""
    index = INDEX.decode(data)
    n_rows = {one.first_id: one.n_rows for one in index.groups}
    pieces = []
    for one in index.pieces:
        form_of, n_bytes = (
            np.frombuffer(words, "<i8").astype(np.int64) for words in (one.form_of, one.n_bytes)
        )
        n = sum(n_rows.get(group, -1) for group in one.groups)
        is_sound = n == len(n_bytes) == len(form_of) and len(one.checksums) == len(one.groups)
        if not (is_sound and all(group in n_rows for group in one.groups)):
            raise WireError(f"its index has a piece of {one.column} with other rows than its groups")
        sizes = [int(size) for size in n_bytes]
        if min(sizes, default=0) < 0 or one.start + sum(sizes) > size:
            raise WireError(f"its index has a piece of {one.column} that is not in its {size} bytes")
        pieces.append(_Piece(one.column, one.start, one.groups, one.forms, form_of, n_bytes, one.checksums))
    return Bound(index.age, index.window), index.groups, tuple(pieces)
