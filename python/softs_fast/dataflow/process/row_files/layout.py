"""The bytes of a file of rows that are no values: its index, and what is around them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from ....errors import WireError
from ....records import Count, Message, Packed, most, span
from ...master.rows.made import MadeGroup
from ...master.rows.records import Name
from ...store.places import Form, checked_form

__all__ = [
    "END",
    "INDEX",
    "MAGIC",
    "MOST_INDEX",
    "TAIL",
    "Index",
    "Integers",
    "Piece",
    "ends_of",
    "tail_checksum",
]

Integers = np.ndarray[Any, np.dtype[np.int64]]

MAGIC = b"softs-fast dataflow rows 1\n"
END = b"rows end"
#: Where the index begins, its bytes, its checksum, and that of these.
TAIL = struct.Struct("<QQII8s")
#: Bytes of the index.
MOST_INDEX = 1 << 28

_MOST_GROUPS = 1 << 22
_Words = Annotated[bytes, most(MOST_INDEX)]


class Piece(Message):
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


class Index(Message):
    """What the file has: a bound of the age of its groups, the groups, and pieces of their columns."""

    age: Count
    window: Count
    groups: Annotated[tuple[MadeGroup, ...], most(_MOST_GROUPS)]
    pieces: Annotated[tuple[Piece, ...], most(_MOST_GROUPS)]


INDEX: Packed[Index] = Packed(Index, most_bytes=MOST_INDEX, what="index of saved rows")


def ends_of(n_bytes: Integers, n_rows: Sequence[int]) -> list[int]:
    """Return where the bytes of each group end."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_bytes)])
    found: list[int] = ends[np.cumsum(n_rows)].tolist()
    return found


def tail_checksum(start: int, n_bytes: int, checksum: int) -> int:
    """Return the checksum of what is said of the index."""
    return zlib.crc32(struct.pack("<QQI", start, n_bytes, checksum), 1)
