"""The bytes of a file of rows that are neither values nor index."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["END", "MAGIC", "MOST_INDEX", "TAIL", "Integers", "ends_of", "tail_checksum"]

Integers = np.ndarray[Any, np.dtype[np.int64]]

MAGIC = b"softs-fast dataflow rows 1\n"
END = b"rows end"
#: Where the index begins, its bytes, its checksum, and that of these.
TAIL = struct.Struct("<QQII8s")
#: Bytes of the index.
MOST_INDEX = 1 << 28


def ends_of(n_bytes: Integers, n_rows: Sequence[int]) -> list[int]:
    """Return where the bytes of each group end."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_bytes)])
    found: list[int] = ends[np.cumsum(n_rows)].tolist()
    return found


def tail_checksum(start: int, n_bytes: int, checksum: int) -> int:
    """Return the checksum of what is said of the index."""
    return zlib.crc32(struct.pack("<QQI", start, n_bytes, checksum), 1)
