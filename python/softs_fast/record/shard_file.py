"""A shard that is read: its header is checked when it is opened, and what is missing or altered is named."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..errors import DamagedError
from .columns import SEQUENCE, Array, Column
from .shard_format import Filled, Layout

__all__ = ["ShardFile"]

_CHUNK_BYTES = 8 << 20
#: A read of so many bytes takes longer than to start a thread, even from the cache of the system.
_WORTH_A_THREAD = 2 << 20


class ShardFile:
    """A shard of a recording, by plain reads: a file that is cut while it is used is an error, and not the end of the process.

    Args:
        path: The file.
        columns: Its columns.
        layout: Layout that the file must have.
        filled: How far the file is filled.

    Raises:
        DamagedError: The file is missing, or has another length or header.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path, columns: Sequence[Column], layout: Layout, filled: Filled) -> None:
        self._path, self._columns, self._layout, self._filled = path, columns, layout, filled
        self._number_of = {column.name: i for i, column in enumerate(columns)}
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing; restore a copy") from None
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
            OSError: They cannot be read.
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
                raise OSError(error.errno, error.strerror, str(self._path)) from None
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

    def n_whole(self, states: Sequence[Filled]) -> int:
        """Return how many of some states, each of which fills the file further, have all their bytes in the file."""
        n = len(states)
        for i, start in enumerate(self._layout.starts):
            done = total = 0
            for k, state in enumerate(states[:n]):
                while done < state.n_bytes[i]:
                    data = os.pread(self._fd, min(_CHUNK_BYTES, state.n_bytes[i] - done), start + done)
                    if not data:
                        break
                    total, done = zlib.crc32(data, total), done + len(data)
                if done != state.n_bytes[i] or total != state.sums[i]:
                    n = k
                    break
        return n

    def verify(self) -> None:
        """Compare all tensors with their checksums.

        Raises:
            DamagedError: One was altered; the text names it.
            OSError: It cannot be read.
        """
        for i, column in enumerate(self._columns):
            total = 0
            start, end = self._layout.starts[i], self._layout.starts[i] + self._filled.n_bytes[i]
            for offset in range(start, end, _CHUNK_BYTES):
                total = zlib.crc32(os.pread(self._fd, min(_CHUNK_BYTES, end - offset), offset), total)
            if total != self._filled.sums[i]:
                raise DamagedError(f'tensor "{column.name}" of {self._path} was altered; restore a copy')

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
        expected = _facts(layout.header)
        facts = _facts(found)
        for name, text in expected.items():
            if facts.get(name) != text:
                have = "no such fact" if name not in facts else repr(facts[name])
                raise DamagedError(
                    f"{self._path} is a file of something else: its header has {have} as {name!r}, expected {text!r}; restore "
                    "the shard of this recording"
                )
        raise DamagedError(f"the header of {self._path} was altered; restore a copy")


def _facts(header: bytes) -> dict[str, str]:
    """Return the metadata of a header; none if it is damaged."""
    try:
        facts = json.loads(header[8:])["__metadata__"]
    except (ValueError, KeyError, TypeError):
        return {}
    return facts if isinstance(facts, dict) else {}
