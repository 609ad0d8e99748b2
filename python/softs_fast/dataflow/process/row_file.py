"""The file of a common save with what functions have made: values in pieces, an index behind them, and checksums.

The index says which bytes are which column of which group. If the file is cut short or changed, what has another
checksum is left out, and all if that is the index. Nothing in it is run.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ...errors import FlowError, WireError
from ...records import Count, Message, Packed, most, span
from ..declare.hooks import LoadRows
from ..link.columns import Columns
from ..link.results import Result
from ..master.rows.made import Bound, MadeGroup
from ..master.rows.records import Name
from ..store import packed
from ..store.places import Form, checked_form
from ..store.values import Value, n_bytes_of

__all__ = ["REFUSED", "Column", "RowFile", "RowFileWriter", "load_rows"]

logger = logging.getLogger(__name__)

_Integers = np.ndarray[Any, np.dtype[np.int64]]

#: Among the numbers of a result: values for which the store had no room.
REFUSED = "refused"

_MAGIC = b"softs-fast dataflow rows 1\n"
_END = b"rows end"
#: Where the index begins, its bytes, its checksum, and that of these.
_TAIL = struct.Struct("<QQII8s")
#: Bytes of the index.
_MOST_INDEX = 1 << 28

_MOST_GROUPS = 1 << 22
_Words = Annotated[bytes, most(_MOST_INDEX)]


class _SavedPiece(Message):
    """Where some values of a column are.

    Attributes:
        column: Name of the column.
        start: Offset of the first byte in the file.
        groups: First ids of the groups of the values.
        forms: Forms of the values, see `store.packed.Packed`, like the next two.
        form_of: Integers of 8 bytes, like the next.
        checksums: Checksum of the bytes of each group.
    """

    column: Name
    start: Count
    groups: Annotated[tuple[Count, ...], most(_MOST_GROUPS)]
    forms: Annotated[tuple[Form, ...], most(1 << 24)]
    form_of: _Words
    n_bytes: _Words
    checksums: Annotated[tuple[Annotated[int, span(0, (1 << 32) - 1)], ...], most(_MOST_GROUPS)]

    def __post_init__(self) -> None:
        for form in self.forms:
            checked_form(form)
        if len(self.form_of) % 8 or len(self.n_bytes) % 8:
            raise WireError(
                f"a piece of {self.column} has {len(self.n_bytes)} bytes; need integers of 8 bytes"
            )


class _Index(Message):
    """What the file has: a bound of the age of its groups, the groups, and pieces of their columns."""

    age: Count
    window: Count
    groups: Annotated[tuple[MadeGroup, ...], most(_MOST_GROUPS)]
    pieces: Annotated[tuple[_SavedPiece, ...], most(_MOST_GROUPS)]


_INDEX: Packed[_Index] = Packed(_Index, most_bytes=_MOST_INDEX, what="index of saved rows")


def _ends_of(n_bytes: _Integers, n_rows: Sequence[int]) -> list[int]:
    """Return where the bytes of each group end."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_bytes)])
    found: list[int] = ends[np.cumsum(n_rows)].tolist()
    return found


def _tail_checksum(start: int, n_bytes: int, checksum: int) -> int:
    """Return the checksum of what is said of the index."""
    return zlib.crc32(struct.pack("<QQI", start, n_bytes, checksum), 1)


class RowFileWriter:
    """Writes a new file, of which only this user may read.

    Args:
        path: Path of the file.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._is_open = True
        self._pieces: list[_SavedPiece] = []
        self._end = 0
        self._write(_MAGIC)

    def add(self, column: str, groups: Sequence[MadeGroup], values: Sequence[Value]) -> None:
        """Write values of a column.

        Args:
            column: Name of the column.
            groups: Groups that the values are of.
            values: Values of all rows of these groups, in their order.

        Raises:
            OSError: it cannot be written.
            FlowError: a value is of another type than rows have.
        """
        own = packed.pack(column, values)
        ends = _ends_of(own.n_bytes, [one.n_rows for one in groups])
        data = own.data.data
        piece = _SavedPiece(
            column,
            self._end,
            tuple(one.first_id for one in groups),
            own.forms,
            own.form_of.astype("<i8").tobytes(),
            own.n_bytes.astype("<i8").tobytes(),
            tuple(zlib.crc32(data[start:end]) for start, end in zip([0, *ends], ends, strict=False)),
        )
        self._write(data)
        self._pieces.append(piece)

    def end(self, groups: Sequence[MadeGroup], bound: Bound) -> None:
        """Write the index, and sync the file.

        Args:
            groups: All groups that values were added of.
            bound: Bound of their age.

        Raises:
            OSError: it cannot be written.
            FlowError: there are too many rows.
        """
        try:
            index = _INDEX.encode(_Index(bound.age, bound.window, tuple(groups), tuple(self._pieces)))
        except WireError as error:
            raise FlowError(str(error)) from None
        start = self._end
        self._write(index)
        checksum = zlib.crc32(index)
        self._write(
            _TAIL.pack(start, len(index), checksum, _tail_checksum(start, len(index), checksum), _END)
        )
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self._descriptor)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            n = os.write(self._descriptor, view)
            view, self._end = view[n:], self._end + n


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
    """A `_SavedPiece` with its integers."""

    column: str
    start: int
    groups: tuple[int, ...]
    forms: tuple[Form, ...]
    form_of: _Integers
    n_bytes: _Integers
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
        ends, rows = _ends_of(piece.n_bytes, n_rows), np.cumsum([0, *n_rows])
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
            values = packed.unpack(packed.Packed(piece.forms, piece.form_of[which], n_bytes, data))
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
    head, tail = bytearray(len(_MAGIC)), bytearray(_TAIL.size)
    _read(descriptor, memoryview(head), 0)
    if head != _MAGIC:
        raise WireError(f"it does not begin with {_MAGIC.decode().strip()!r}")
    if size >= len(_MAGIC) + _TAIL.size:
        _read(descriptor, memoryview(tail), size - _TAIL.size)
    start, n_bytes, checksum, of_tail, end = _TAIL.unpack(tail)
    is_tail = end == _END and of_tail == _tail_checksum(start, n_bytes, checksum)
    if not is_tail or n_bytes > _MOST_INDEX or start + n_bytes + _TAIL.size != size:
        raise WireError(f"its {size} bytes do not end with an index; it is cut short, or was changed")
    index = bytearray(n_bytes)
    _read(descriptor, memoryview(index), start)
    if zlib.crc32(index) != checksum:
        raise WireError(f"its index of {n_bytes} bytes was changed")
    return bytes(index)


def _index(data: bytes, size: int) -> tuple[Bound, tuple[MadeGroup, ...], tuple[_Piece, ...]]:
    """Return what an index says; each field is checked, so that nothing larger than the file is allocated."""
    index = _INDEX.decode(data)
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


def load_rows(hook: LoadRows, put: Callable[[str, Sequence[int], Sequence[Value]], Sequence[Any]]) -> Result:
    """Read values of a column, and keep them; returns the rows of which they are, and their places.

    What is damaged, or has no room, is left out.

    Args:
        hook: Hook that says what is read.
        put: Function that keeps values of rows.
    """
    ids: list[int] = []
    places: list[Any] = []
    n_refused = n_bytes = 0
    try:
        file = RowFile(hook.path)
        wanted = [file.groups[one] for one in hook.groups if one in file.groups]
        for column in file.columns(wanted, hook.pieces):
            try:
                places += put(column.name, column.ids, column.values)
            except FlowError:
                n_refused += len(column.ids)
                continue
            ids += column.ids
            n_bytes += sum(map(n_bytes_of, column.values))
    except (WireError, OSError) as error:
        logger.warning("%s: %s", hook.path, error)
    numbers = {REFUSED: float(n_refused)} if n_refused else {}
    return Result(
        0, ids=tuple(ids), columns=Columns.of({hook.column: places}), n_bytes=n_bytes, numbers=numbers
    )
