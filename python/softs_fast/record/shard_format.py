"""Layout of a shard, and the journal of one that is still open.

A shard is a file of safetensors. While it is open, its header is that of a full one, and each tensor is filled from its
beginning on. The journal beside it has a line for each block of samples: how far all tensors are filled, and checksums of
what is there. So an open shard can be read up to its last complete block, whatever has ended its writer.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DamagedError
from ..tensors import file_header
from .columns import Column
from .manifest import StreamFacts

__all__ = ["Filled", "Layout", "capacity_of", "journal_line", "parse_journal"]


@dataclass(frozen=True)
class Filled:
    """How far a shard is filled.

    Attributes:
        n: Number of samples.
        n_bytes: Bytes of each column.
        sums: CRC-32 of these bytes.
    """

    n: int
    n_bytes: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def nothing(cls, columns: Sequence[Column]) -> Filled:
        """Return the state of a new shard: offsets begin with a zero."""
        begins = [bytes(column.item_bytes if column.kind == "offsets" else 0) for column in columns]
        return cls(0, tuple(map(len, begins)), tuple(map(zlib.crc32, begins)))


class Layout:
    """Where the tensors of a shard are.

    Args:
        stream: Recording that the shard belongs to.
        columns: Columns of a shard.
        index: Number of the shard.
        n: Number of samples.
        n_bytes: Bytes of each column.

    Attributes:
        header: Bytes before the first tensor.
        starts: Offset of each column in the file.
        end: Length of the file.
    """

    def __init__(
        self, stream: StreamFacts, columns: Sequence[Column], index: int, n: int, n_bytes: Sequence[int]
    ) -> None:
        described = [
            (column.name, column.dtype, (_n_items(column, n, size), *column.shape), size)
            for column, size in zip(columns, n_bytes, strict=True)
        ]
        facts = {
            "softs_fast": f"recording {stream.format}",
            "recording": stream.recording,
            "product": stream.product,
            "config": stream.digest,
            "shard": str(index),
        }
        self.header = file_header(described, facts)
        self.starts: list[int] = []
        self.end = len(self.header)
        for size in n_bytes:
            self.starts.append(self.end)
            self.end += size


def capacity_of(columns: Sequence[Column], shard_bytes: int) -> tuple[int, tuple[int, ...]]:
    """Return the samples, and the bytes of each column, for which an open shard has room: the longest sample, at least."""
    per_sample = sum(column.item_bytes for column in columns if column.kind != "values")
    n = max(1, shard_bytes // per_sample)
    return n, tuple(
        max(shard_bytes // column.item_bytes, column.most) * column.item_bytes
        if column.kind == "values"
        else (n + (column.kind == "offsets")) * column.item_bytes
        for column in columns
    )


def journal_line(filled: Filled) -> bytes:
    """Return the bytes of a line of the journal."""
    pairs = [value for pair in zip(filled.n_bytes, filled.sums, strict=True) for value in pair]
    body = _line(len(filled.sums)).pack(filled.n, *pairs)
    return body + zlib.crc32(body).to_bytes(4, "little")


def parse_journal(data: bytes, columns: Sequence[Column], what: str) -> list[Filled]:
    """Return the lines of a journal up to the first bad one: a crash cuts the last line short, and a disk that lost power may lose more.

    Raises:
        DamagedError: A line was altered that is followed by a good one.
    """
    body = _line(len(columns))
    size = body.size + 4
    found: list[Filled] = []
    for start in range(0, len(data), size):
        line = data[start : start + size]
        if len(line) < size or zlib.crc32(line[:-4]) != int.from_bytes(line[-4:], "little"):
            continue
        if start != len(found) * size:
            raise DamagedError(
                f"{what} is damaged at byte {len(found) * size} of {len(data)}; restore a copy"
            )
        n, *pairs = body.unpack(line[:-4])
        found.append(Filled(n, tuple(pairs[::2]), tuple(pairs[1::2])))
    return found


def _line(n_columns: int) -> struct.Struct:
    return struct.Struct("<Q" + n_columns * "QI")


def _n_items(column: Column, n: int, n_bytes: int) -> int:
    if column.kind == "values":
        return n_bytes // column.item_bytes
    return n + (column.kind == "offsets")
