"""Shards: their layout, the journal of one that is still open, and how they are read and checked.

A shard is a file of safetensors. While it is open, its header is that of a full one, and each tensor is filled from its
beginning on. The journal beside it has a line for each block of samples: how far all tensors are filled, and checksums of
what is there. So an open shard can be read up to its last complete block, whatever has ended its writer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ..errors import DamagedError
from ..tensors import file_header
from .columns import SEQUENCE, Array, Column
from .folder import Folder
from .manifest import MANIFEST, StreamFacts, shard_name

__all__ = [
    "Filled",
    "Layout",
    "Shard",
    "ShardFile",
    "capacity_of",
    "journal_line",
    "parse_journal",
    "read_tail",
]

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 8 << 20
#: A read of so many bytes takes longer than to start a thread, even from the cache of the system.
_WORTH_A_THREAD = 2 << 20


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


@dataclass(frozen=True)
class Shard:
    """A shard in its folder. Its numbers are first, first + world_size, ..., last, unless samples are missing between them.

    Attributes:
        folder, file: Folder and name of the file.
        stream: Recording that the shard belongs to.
        index: Number of the shard.
        filled: How far the file is filled with whole blocks.
        first, last: Numbers of its first and last sample.
        layout: Layout of an open shard; None for a closed one, which has exactly its samples.
    """

    folder: Folder
    file: str
    stream: StreamFacts
    index: int
    filled: Filled
    first: int = 0
    last: int = 0
    layout: Layout | None = None

    @property
    def path(self) -> str:
        """Path or URL of the file."""
        return self.folder.path(self.file)

    @property
    def is_dense(self) -> bool:
        """Whether no sample is missing between the first and the last one."""
        return self.last == self.first + (self.filled.n - 1) * self.stream.world_size

    def layout_of(self, columns: Sequence[Column]) -> Layout:
        """Return the layout of the file."""
        filled = self.filled
        return self.layout or Layout(self.stream, columns, self.index, filled.n, filled.n_bytes)


class ShardFile:
    """A shard that is read by plain reads: a file that is cut meanwhile is an error, and not the end of the process.

    Args:
        shard: The shard.
        columns: Its columns.

    Attributes:
        n_bytes: Length of the file.

    Raises:
        DamagedError: The file is missing, or has another length or header.
        OSError: The file cannot be read.
    """

    def __init__(self, shard: Shard, columns: Sequence[Column]) -> None:
        self._path, self._columns, self._filled = shard.path, columns, shard.filled
        self._layout = shard.layout_of(columns)
        self._number_of = {column.name: i for i, column in enumerate(columns)}
        self.n_bytes = self._layout.end
        try:
            self._fd = shard.folder.open(shard.file, self.n_bytes)
        except FileNotFoundError:
            raise DamagedError(f"{self._path} is missing; restore a copy") from None
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def read(self, name: str, start: int, array: Array) -> None:
        """Read items of a column.

        Args:
            name: Name of the column.
            start: First item.
            array: Contiguous memory for the items, of the column's dtype.

        Raises:
            DamagedError: The file ends before they do.
            OSError: The file cannot be read.
        """
        i = self._number_of[name]
        offset = self._layout.starts[i] + start * self._columns[i].item_bytes
        view = array.reshape(-1).view(np.uint8).data
        if len(view) < _WORTH_A_THREAD:
            self._read_at(offset, view)
            return
        half = len(view) // 2
        with ThreadPoolExecutor(1, "softs-read") as thread:
            other = thread.submit(self._read_at, offset + half, view[half:])
            self._read_at(offset, view[:half])
            other.result()

    def _read_at(self, offset: int, view: memoryview) -> None:
        while view:
            try:
                n = os.preadv(self._fd, [view], offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from None
            if not n:
                raise DamagedError(f"{self._path} was cut while it was read; restore a copy")
            view, offset = view[n:], offset + n

    def numbers(self) -> Array:
        """Return the numbers of all samples, uint64 [n].

        Raises:
            DamagedError, OSError: as `read`.
        """
        numbers = self._columns[self._number_of[SEQUENCE]].empty(self._filled.n)
        self.read(SEQUENCE, 0, numbers)
        return numbers

    def n_whole(self, states: Sequence[Filled]) -> tuple[int, str]:
        """Return how many states have all their bytes in the file, and the first column that lacks some of the next state.

        Args:
            states: States of the shard, each of which fills it further.
        """
        n, lacking = len(states), ""
        for i, (column, start) in enumerate(zip(self._columns, self._layout.starts, strict=True)):
            done = total = 0
            for k, state in enumerate(states[:n]):
                while done < state.n_bytes[i]:
                    data = os.pread(self._fd, min(_CHUNK_BYTES, state.n_bytes[i] - done), start + done)
                    if not data:
                        break
                    total, done = zlib.crc32(data, total), done + len(data)
                if done != state.n_bytes[i] or total != state.sums[i]:
                    n, lacking = k, column.name
                    break
        return n, lacking

    def verify(self) -> None:
        """Compare all tensors with their checksums.

        Raises:
            DamagedError: One was altered; the text names it.
            OSError: The file cannot be read.
        """
        n, lacking = self.n_whole([self._filled])
        if not n:
            raise DamagedError(f'tensor "{lacking}" of {self._path} was altered; restore a copy')

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _check(self) -> None:
        size, layout = os.fstat(self._fd).st_size, self._layout
        if size != layout.end:
            raise DamagedError(f"{self._path} has {size:,} of {layout.end:,} bytes; restore a copy")
        found = os.pread(self._fd, len(layout.header), 0)
        if found == layout.header:
            return
        facts = _facts(found)
        for name, text in _facts(layout.header).items():
            if facts.get(name) != text:
                have = "no such fact" if name not in facts else repr(facts[name])
                raise DamagedError(
                    f"{self._path} is a file of something else: its header has {have} as {name!r}, expected {text!r}; restore "
                    "the shard of this recording"
                )
        raise DamagedError(f"the header of {self._path} was altered; restore a copy")


def read_tail(
    folder: Folder, sizes: Mapping[str, int | None], stream: StreamFacts, columns: Sequence[Column]
) -> Shard | None:
    """Return the shard after those of the manifest, up to its last complete block; None if no block is complete.

    The shard is open, or was closed an instant before its writer was killed. What a crash has cut short is left out; so is
    what a disk that lost power has lost, with a warning.

    Args:
        folder: Folder of the recording.
        sizes: Bytes of the files in the folder, by their names; None where the store does not tell.
        stream: The manifest.
        columns: Columns of a shard.

    Raises:
        DamagedError: The shard or its journal was altered, or the manifest is older than the shards.
        OSError: The files cannot be read.
    """
    index = len(stream.shards)
    file, journal = f"shard-{index:06}.open", f"shard-{index:06}.rows"
    is_closed = shard_name(index) in sizes
    numbers = [int(name[6:-12]) for name in sizes if re.fullmatch(r"shard-\d{6,}\.safetensors", name)]
    if later := [n for n in numbers if n > index or (n == index and journal not in sizes)]:
        raise DamagedError(
            f"{folder} has {shard_name(max(later))}, and its {MANIFEST} lists {index} shards: that file is from an earlier time, or "
            "the shard of another recording; restore the one that belongs there"
        )
    if is_closed:
        file = shard_name(index)
    elif file not in sizes:
        return None
    path = folder.path(file)
    try:
        data = folder.read(journal, sizes.get(journal))
    except FileNotFoundError:
        raise DamagedError(f"{path} cannot be read, because its journal {journal} is missing") from None
    lines = parse_journal(data, columns, folder.path(journal))
    if n_bad := len(data) // len(journal_line(Filled.nothing(columns))) - len(lines):
        logger.warning(
            "%s has lost its last %d lines, which were not on disk yet", folder.path(journal), n_bad
        )
    if not lines:
        return None
    last = lines[-1]
    room = (last.n, last.n_bytes) if is_closed else capacity_of(columns, stream.shard_bytes)
    shard = Shard(folder, file, stream, index, last, layout=Layout(stream, columns, index, *room))
    with contextlib.closing(ShardFile(shard, columns)) as opened:
        n_whole, _ = opened.n_whole(lines)
        filled = lines[n_whole - 1] if n_whole else Filled.nothing(columns)
        if (n_lost := last.n - filled.n) and is_closed:
            raise DamagedError(f"{path} was altered; restore a copy")
        if n_lost:
            logger.warning("%s has lost its last %d samples, which were not on disk yet", path, n_lost)
        if not n_whole:
            return None
        ends = opened.numbers()[[0, filled.n - 1]]
    return replace(shard, filled=filled, first=int(ends[0]), last=int(ends[1]))


def _facts(header: bytes) -> dict[str, str]:
    """Return the metadata of a header; none if it is damaged."""
    try:
        facts = json.loads(header[8:])["__metadata__"]
    except (ValueError, KeyError, TypeError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _line(n_columns: int) -> struct.Struct:
    return struct.Struct("<Q" + n_columns * "QI")


def _n_items(column: Column, n: int, n_bytes: int) -> int:
    if column.kind == "values":
        return n_bytes // column.item_bytes
    return n + (column.kind == "offsets")
