"""Writes a file of rows."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from ....errors import FlowError, WireError
from ...master.rows.made import Bound, MadeGroup
from ...store.packed import pack
from ...store.values import Value
from .layout import END, INDEX, MAGIC, TAIL, Index, Piece, ends_of, tail_checksum

__all__ = ["RowFileWriter"]


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
        self._pieces: list[Piece] = []
        self._end = 0
        self._write(MAGIC)

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
        packed = pack(column, values)
        ends = ends_of(packed.n_bytes, [one.n_rows for one in groups])
        data = packed.data.data
        piece = Piece(
            column,
            self._end,
            tuple(one.first_id for one in groups),
            packed.forms,
            packed.form_of.astype("<i8").tobytes(),
            packed.n_bytes.astype("<i8").tobytes(),
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
            index = INDEX.encode(Index(bound.age, bound.window, tuple(groups), tuple(self._pieces)))
        except WireError as error:
            raise FlowError(str(error)) from None
        start = self._end
        self._write(index)
        checksum = zlib.crc32(index)
        self._write(TAIL.pack(start, len(index), checksum, tail_checksum(start, len(index), checksum), END))
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
