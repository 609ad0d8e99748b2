"""The last shard of a folder, which is not in the manifest yet: open, or closed an instant before its writer was killed."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..durable import open_plain
from ..errors import DamagedError
from .columns import Column
from .manifest import MANIFEST, StreamFacts, shard_name
from .shard_file import ShardFile
from .shard_format import Filled, Layout, capacity_of, journal_line, parse_journal

__all__ = ["Tail", "read_tail"]

logger = logging.getLogger(__name__)

#: The journal of a shard with a line for each sample of 8 bytes.
_MOST_JOURNAL = 1 << 30


@dataclass(frozen=True)
class Tail:
    """A shard after those of the manifest.

    Attributes:
        path: The file.
        layout: Layout of the file.
        filled: How far it is filled with whole blocks.
        first, last: Numbers of its first and last sample.
    """

    path: Path
    layout: Layout
    filled: Filled
    first: int
    last: int


def read_tail(folder: Path, stream: StreamFacts, columns: Sequence[Column]) -> Tail | None:
    """Return the shard after those of the manifest, up to its last complete block; None if no block is complete.

    What a crash has cut short is left out; what a disk has lost that lost power, too, and a warning says so.

    Raises:
        DamagedError: The shard or its journal was altered, or the manifest is older than the shards.
        OSError: They cannot be read.
    """
    index = len(stream.shards)
    path, journal = folder / f"shard-{index:06}.open", folder / f"shard-{index:06}.rows"
    closed = folder / shard_name(index)
    later = [
        n for n in map(_number_of, os.listdir(folder)) if n > index or (n == index and not journal.exists())
    ]
    if later:
        raise DamagedError(
            f"{folder} has {shard_name(max(later))}, and its {MANIFEST} lists {index} shards: that file is from an earlier time, or "
            "the shard of another recording; restore the one that belongs there"
        )
    if closed.exists():
        path = closed
    elif not path.exists():
        return None
    try:
        with open(open_plain(journal, os.O_RDONLY, "a journal"), "rb") as file:
            data = file.read(_MOST_JOURNAL)
    except FileNotFoundError:
        raise DamagedError(f"{path} cannot be read, because its journal {journal.name} is missing") from None
    lines = parse_journal(data, columns, str(journal))
    if n_bad := len(data) // len(journal_line(Filled.nothing(columns))) - len(lines):
        logger.warning("%s has lost its last %d lines, which were not on disk yet", journal, n_bad)
    if not lines:
        return None
    last = lines[-1]
    sizes = (last.n, last.n_bytes) if path == closed else capacity_of(columns, stream.shard_bytes)
    layout = Layout(stream, columns, index, *sizes)
    with contextlib.closing(ShardFile(path, columns, layout, last)) as shard:
        n_whole = shard.n_whole(lines)
        n_lost = last.n - (lines[n_whole - 1].n if n_whole else 0)
        if n_lost and path == closed:
            raise DamagedError(f"{path} was altered; restore a copy")
        if n_lost:
            logger.warning("%s has lost its last %d samples, which were not on disk yet", path, n_lost)
        if not n_whole:
            return None
        numbers = shard.numbers()
    filled = lines[n_whole - 1]
    return Tail(path, layout, filled, int(numbers[0]), int(numbers[filled.n - 1]))


def _number_of(name: str) -> int:
    """Return the number of a closed shard; -1 if the name is of something else."""
    found = re.fullmatch(r"shard-(\d{6,})\.safetensors", name)
    return int(found[1]) if found else -1
