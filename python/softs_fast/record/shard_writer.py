"""Appends samples to the shards of a folder: one shard is open, those before it are closed and never change again.

| file | what it is |
|---|---|
| `shard-000002.open` | the open shard, with room for a full one |
| `shard-000002.rows` | its journal; it stays until the manifest has the closed shard |
| `shard-000001.safetensors` | a closed shard, which is on disk before it has this name |
| `stream.json` | the manifest |

No sync is needed for a block: what a process has written is there whatever kills it, and the checksums of the journal tell
what a disk has lost that lost power. The header and the length of the open shard are synced before its first block, and its
journal is replaced by the line of the closed shard before that has its name.
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from ..durable import open_plain, sync_folder, write_file
from ..records import replace
from .columns import SEQUENCE, Array, Column, Rows, columns_of
from .folder import Folder
from .manifest import ShardFacts, StreamFacts, shard_name, write_manifest
from .shards import Filled, Layout, Shard, capacity_of, journal_line, read_tail

__all__ = ["ShardWriter"]

_COPIED_BYTES = 8 << 20


class ShardWriter:
    """Appends samples to a recording. Not for several threads.

    What a writer that was killed has left in the open shard is closed first, up to its last complete block.

    Args:
        folder: Folder that no other process writes to.
        stream: Facts of the recording with its closed shards; the manifest is replaced.
        shard_bytes: Bytes of samples per shard.

    Attributes:
        stream: Facts of the recording with the shards that are closed by now.

    Raises:
        DamagedError: The open shard was altered.
        OSError: The operating system refused an operation.
    """

    def __init__(self, folder: Path, stream: StreamFacts, shard_bytes: int) -> None:
        self._folder = folder
        self._columns = columns_of(stream.config)
        self.stream = stream
        self._open: _OpenShard | None = None
        here = Folder(folder)
        if (tail := read_tail(here, here.sizes(), stream, self._columns)) is not None:
            # Nothing in the folder may lead to a file elsewhere that is written over.
            with os.fdopen(open_plain(folder / tail.file, os.O_RDWR, "a shard"), "r+b") as file:
                self._publish(tail, file.fileno())
        for name in os.listdir(folder):
            if name.endswith((".open", ".rows", ".new")):
                os.unlink(folder / name)
        self.stream = replace(self.stream, shard_bytes=shard_bytes)
        write_manifest(folder, self.stream)

    @property
    def n(self) -> int:
        """Number of samples in the recording."""
        return sum(shard.n_samples for shard in self.stream.shards) + (
            self._open.shard.filled.n if self._open else 0
        )

    @property
    def end(self) -> int:
        """The number after the last sample, in the steps of the rank."""
        if self._open is None or not self._open.shard.filled.n:
            return self.stream.end
        return self._open.shard.last + self.stream.world_size

    def append(self, rows: Rows) -> None:
        """Append samples. Once this returns, they survive the death of the process.

        Raises:
            OSError: They cannot be written; those of earlier calls stay readable.
        """
        start = 0
        while start < rows.n:
            if self._open is None:
                self._open = _OpenShard(self._folder, self.stream, self._columns)
            fit = self._open.fit(rows.cut(start, rows.n))
            if fit:
                self._open.append(rows.cut(start, start + fit))
                start += fit
            if start < rows.n or self._open.is_full:
                self._close_shard()

    def note_dropped(self, n: int) -> None:
        """Note how many samples were left out so far; the manifest has it with the next shard."""
        self.stream = replace(self.stream, dropped=n)

    def close(self) -> None:
        """Close the open shard, and replace the manifest.

        Raises:
            OSError: The operating system refused an operation.
        """
        if self._open is None:
            write_manifest(self._folder, self.stream)
        else:
            self._close_shard()

    def abandon(self) -> None:
        """Release the descriptors; the open shard stays as it is. `close` writes the manifest only, then."""
        if self._open is not None:
            self._open.release()
            self._open = None

    def _close_shard(self) -> None:
        opened = self._open
        assert opened is not None
        self._publish(opened.shard, opened.fd)
        opened.release()
        self._open = None

    def _publish(self, shard: Shard, fd: int) -> None:
        """Give a shard its name once it is on disk and has no room left, and add it to the manifest."""
        path, filled = self._folder / shard.file, shard.filled
        closed = self._folder / shard_name(shard.index)
        layout = shard.layout_of(self._columns)
        exact = Layout(self.stream, self._columns, shard.index, filled.n, filled.n_bytes)
        if path != closed:  # otherwise its writer was killed before it was in the manifest
            if exact.header == layout.header:
                os.fsync(fd)
            else:
                path = self._folder / f"shard-{shard.index:06}.new"
                _write_exact(path, fd, layout, exact, filled)
            write_file(self._folder / f"shard-{shard.index:06}.rows", journal_line(filled))
            os.rename(path, closed)
        sync_folder(self._folder)
        pairs = zip(filled.n_bytes, filled.sums, strict=True)
        facts = ShardFacts(
            file=closed.name,
            n_samples=filled.n,
            first=shard.first,
            last=shard.last,
            n_bytes=exact.end,
            tensors={column.name: pair for column, pair in zip(self._columns, pairs, strict=True)},
        )
        stream = replace(self.stream, shards=(*self.stream.shards, facts))
        write_manifest(self._folder, stream)
        self.stream = stream
        for suffix in ("open", "rows"):
            with suppress(FileNotFoundError):
                os.unlink(self._folder / f"shard-{shard.index:06}.{suffix}")


class _OpenShard:
    """The shard to which samples are appended.

    Args:
        folder: Folder of the recording.
        stream: Facts of the recording.
        columns: Columns of a shard.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, folder: Path, stream: StreamFacts, columns: Sequence[Column]) -> None:
        index = len(stream.shards)
        self._columns = columns
        self._n, capacity = capacity_of(columns, stream.shard_bytes)
        layout = Layout(stream, columns, index, self._n, capacity)
        self.shard = Shard(
            Folder(folder), f"shard-{index:06}.open", stream, index, Filled.nothing(columns), layout=layout
        )
        self._starts = layout.starts
        self._n_lines = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with ExitStack() as opened:
            self._journal = os.open(folder / f"shard-{index:06}.rows", flags, 0o600)
            opened.callback(os.close, self._journal)
            self.fd = os.open(folder / self.shard.file, flags, 0o600)
            opened.callback(os.close, self.fd)
            sync_folder(folder)
            _write_at(self.fd, layout.header, 0)
            os.ftruncate(self.fd, layout.end)
            os.fsync(self.fd)
            self._opened = opened.pop_all()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another sample."""
        return self.shard.filled.n == self._n

    def fit(self, rows: Rows) -> int:
        """Return how many of some samples fit, from the first one on; of a new shard at least one."""
        filled = self.shard.filled
        n = min(rows.n, self._n - filled.n)
        ragged = [column for column in self._columns if column.kind == "values"]
        if not ragged:
            return n
        sizes = np.full(rows.n, sum(c.item_bytes for c in self._columns if c.kind != "values"), np.int64)
        for column in ragged:
            sizes += rows.lengths(column) * column.item_bytes
        room = self.shard.stream.shard_bytes - sum(filled.n_bytes)
        within = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        return min(n, max(within, int(filled.n == 0)))

    def append(self, rows: Rows) -> None:
        """Append samples that fit."""
        filled = self.shard.filled
        n_bytes, sums = list(filled.n_bytes), list(filled.sums)
        for i, column in enumerate(self._columns):
            data = self._bytes_of(column, rows)
            _write_at(self.fd, data, self._starts[i] + n_bytes[i])
            n_bytes[i] += len(data)
            sums[i] = zlib.crc32(data, sums[i])
        after = Filled(filled.n + rows.n, tuple(n_bytes), tuple(sums))
        line = journal_line(after)
        # A line that could not be written whole is written over.
        _write_at(self._journal, line, self._n_lines * len(line))
        numbers = rows.arrays[SEQUENCE]
        first = self.shard.first if filled.n else int(numbers[0])
        self.shard = dataclasses.replace(self.shard, filled=after, first=first, last=int(numbers[-1]))
        self._n_lines += 1

    def release(self) -> None:
        """Close the descriptors. Idempotent."""
        self._opened.close()

    def _bytes_of(self, column: Column, rows: Rows) -> memoryview:
        array = rows.arrays[column.name]
        if column.kind == "offsets":
            i = next(i for i, one in enumerate(self._columns) if one.name == f"{column.name[:-7]}values")
            array = np.cumsum(array) + self.shard.filled.n_bytes[i] // self._columns[i].item_bytes
        flat: Array = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return flat.data


def _write_exact(new: Path, fd: int, layout: Layout, exact: Layout, filled: Filled) -> None:
    """Write a shard of exactly its samples, and sync it."""
    with suppress(FileNotFoundError):
        os.unlink(new)
    target = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_at(target, exact.header, 0)
        for source, start, size in zip(layout.starts, exact.starts, filled.n_bytes, strict=True):
            for done in range(0, size, _COPIED_BYTES):
                _write_at(target, os.pread(fd, min(_COPIED_BYTES, size - done), source + done), start + done)
        os.fsync(target)
    finally:
        os.close(target)


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all bytes at a place of a file; a write may be short, as on a disk that becomes full."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n
