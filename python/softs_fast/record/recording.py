"""A recording that is read: samples by their numbers, from the shards of all ranks."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..configs import BatchConfig
from ..errors import ConfigError, DamagedError
from ..process import renewed_in_forks
from .columns import SEQUENCE, Array, batch_of, columns_of, first_difference, samples_of, served_config
from .manifest import MANIFEST, StreamFacts, read_manifest
from .shard_file import ShardFile
from .shard_format import Filled, Layout
from .tail import read_tail

__all__ = ["Recording"]

#: Files that are open at a time.
_MOST_OPEN = 64
_VERIFIED_AT_A_TIME = 4


@dataclass(frozen=True)
class _Shard:
    """A shard: its numbers are first, first + world_size, ..., last, unless samples are missing between them."""

    path: Path
    stream: StreamFacts
    index: int
    filled: Filled
    first: int
    last: int
    #: That of an open shard; a closed one has exactly its samples.
    layout: Layout | None = None

    @property
    def is_dense(self) -> bool:
        return self.last == self.first + (self.filled.n - 1) * self.stream.world_size


class Recording:
    """A folder that a loader or ``softs-fast record`` has written, of one rank or of all; it may still be written to.

    Files are opened when they are needed. What was recorded after this was made is not seen.

    Args:
        folder: Folder of the recording.
        batch_config: Config that the samples must have; None: any.
        verify: Whether to compare all samples with their checksums now, which reads all files.

    Attributes:
        folder: The folder.
        product: Product that was recorded.
        config: Config of the samples as they are served again: tensors with the codecs `Cast` and `Int8`, and those of
            users, are recorded as decoded, so they have no codec here.
        ordered: Whether the numbers are sequence numbers of the stream; otherwise they count the samples as they were handed out.
        world_size: Number of ranks that have recorded.
        n_dropped: Samples that the policy `"drop"` has left out.
        numbers: Numbers of all samples, in order; a range if none is missing between them.

    Raises:
        ConfigError: The folder is not a recording, it is of another version, or `batch_config` differs from its config: the text
            names the first difference.
        DamagedError: A file is missing, cut short, altered or of another recording; the text names it.
        OSError: A file cannot be read.

    Example:
        >>> from softs_fast.record import Recording
        >>> with Recording("epoch") as recording:  # doctest: +SKIP
        ...     print(len(recording), recording.config.tensor_names)
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, batch_config: BatchConfig | None = None, verify: bool = False
    ) -> None:
        self.folder = Path(folder)
        self._given_config = batch_config
        self._lock: threading.Lock
        renewed_in_forks(self, "_lock")
        self._files: OrderedDict[Path, ShardFile] = OrderedDict()
        self._numbers_of: dict[Path, Array] = {}
        parts = [(one, read_manifest(one)) for one in _folders(self.folder)]
        stream = parts[0][1]
        sent = stream.config
        if batch_config is not None and (difference := first_difference(sent, batch_config)):
            raise ConfigError(f"recording {self.folder} has other samples: {difference}")
        self.product, self.ordered, self.world_size = stream.product, stream.ordered, stream.world_size
        self.config = served_config(sent)
        self.n_dropped = sum(one.dropped for _, one in parts)
        self._columns = columns_of(sent)
        # All but the numbers.
        self._read = [column for column in self._columns if column.name != SEQUENCE]
        self._stream = stream
        if len(parts) != stream.world_size:
            raise ConfigError(
                f"{self.folder} has the samples of rank {stream.rank} of {stream.world_size}; give the folder that it is in"
            )
        # By rank.
        self._shards: list[list[_Shard]] = []
        for rank, (one, facts) in enumerate(parts):
            _check_part(one, facts, rank, stream)
            self._shards.append(self._current_shards(one))
        self._firsts = [[shard.first for shard in shards] for shards in self._shards]
        self.numbers: range | Array = self._all_numbers()
        if verify:
            self.verify()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.numbers)

    @property
    def span(self) -> range:
        """The numbers from the first one to the last one that all ranks have, in steps of 1.

        Raises:
            DamagedError: Samples between them are missing; the text names the first one.
        """
        firsts = [shards[0].first // self.world_size for shards in self._shards if shards]
        lasts = [shards[-1].last // self.world_size for shards in self._shards if shards]
        if len(firsts) < self.world_size:
            return range(0)
        span = range(self.world_size * max(firsts), self.world_size * (min(lasts) + 1))
        if not isinstance(self.numbers, range):
            found = np.searchsorted(self.numbers, span.start)
            there = self.numbers[found : found + len(span)]
            missing = np.flatnonzero(there != np.arange(span.start, span.start + len(there)))
            if len(missing) or len(there) < len(span):
                number = span.start + (int(missing[0]) if len(missing) else len(there))
                raise DamagedError(
                    f"recording {self.folder} lacks samples between its first and its last one: number {number} is the first; "
                    "they were not recorded, because of the policy or of a crash: RecordedDataset has those that are there"
                )
        return span

    def batch(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return samples, stacked as a loader hands them out.

        Args:
            numbers: Numbers of the samples.

        Returns:
            `{name: dtype [len(numbers), *shape]}`; `TopKLogits` and `RaggedTensor` as from a loader.

        Raises:
            ConfigError: There is no sample of such a number.
            DamagedError, OSError: as for the class.
        """
        arrays = {one.name: one.empty(len(numbers)) for one in self._read if one.kind != "values"}
        self.fill(numbers, arrays)
        return batch_of(self.config, arrays)

    def samples(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return samples, each as `BatchConfig.decode` returns it; read together, on the memory of one batch.

        Raises:
            ConfigError, DamagedError, OSError: as for `batch`.
        """
        return samples_of(self.batch(numbers))

    def fill(self, numbers: Sequence[int], arrays: dict[str, Array]) -> None:
        """Copy samples into memory.

        Args:
            numbers: Numbers of the samples.
            arrays: Memory for each tensor of fixed shape, C-contiguous, `dtype [len(numbers), *shape]`, by its name in the
                files; where there are ragged ones, their values are added.

        Raises:
            ConfigError: There is no sample of such a number.
            DamagedError, OSError: as for the class.
        """
        pieces: dict[str, list[Array]] = {one.name: [] for one in self._read if one.kind == "values"}
        with self._lock:
            for shard, row, start, stop in self._runs(numbers):
                file = self._file(shard)
                for column in self._read:
                    if column.kind == "rows":
                        file.read(column.name, row, arrays[column.name][start:stop])
                    elif column.kind == "values":
                        offsets = np.empty(stop - start + 1, np.int64)
                        name = column.name.removesuffix("values") + "offsets"
                        file.read(name, row, offsets)
                        arrays[name][start:stop] = lengths = np.diff(offsets)
                        if offsets[0] < 0 or lengths.min() < 0 or lengths.max() > column.most:
                            raise DamagedError(
                                f'the offsets of "{column.name}" in {shard.path} were altered; restore a copy'
                            )
                        pieces[column.name].append(column.empty(int(lengths.sum())))
                        file.read(column.name, int(offsets[0]), pieces[column.name][-1])
        for name, found in pieces.items():
            arrays[name] = found[0] if len(found) == 1 else np.concatenate(found)

    def origin(self, number: int) -> dict[str, Any]:
        """Return where a sample is from: product, file and row, and rank, host and time of the recording.

        Raises:
            ConfigError: There is no sample of such a number.
        """
        shard, row, _, _ = next(self._runs([number]))
        facts = {name: getattr(self._stream, name) for name in ("host", "version", "began_s")}
        return {
            "product": self.product,
            "file": str(shard.path),
            "row": row,
            "rank": number % self.world_size,
            **facts,
        }

    def verify(self) -> None:
        """Compare all samples with their checksums, some files at a time.

        Raises:
            DamagedError, OSError: as for the class.
        """

        def check(shard: _Shard) -> None:
            with contextlib.closing(self._opened(shard)) as file:
                file.verify()
                self._checked_numbers(shard, file)

        with ThreadPoolExecutor(_VERIFIED_AT_A_TIME, "softs-verify") as threads:
            for _ in threads.map(check, (shard for shards in self._shards for shard in shards)):
                pass

    def close(self) -> None:
        """Close the files; they are opened again when they are needed. Idempotent."""
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Close the files."""
        for file in getattr(self, "_files", {}).values():
            file.close()

    def __reduce__(self) -> Any:
        """Open it anew in another process."""
        return _reopened, (self.folder, self._given_config)

    def _current_shards(self, folder: Path) -> list[_Shard]:
        """Return the shards of a folder; look again if its writer has closed one meanwhile."""
        while True:
            names = set(os.listdir(folder))
            try:
                return self._shards_of(folder, read_manifest(folder))
            except DamagedError:
                if names == set(os.listdir(folder)):
                    raise

    def _shards_of(self, folder: Path, stream: StreamFacts) -> list[_Shard]:
        shards, missing = [], []
        for i, facts in enumerate(stream.shards):
            try:
                pairs = [facts.tensors[column.name] for column in self._columns]
            except KeyError as error:
                raise DamagedError(
                    f"{folder / MANIFEST} is damaged: shard {i} lacks tensor {error}"
                ) from None
            filled = Filled(facts.n_samples, *zip(*pairs, strict=True))
            shard = _Shard(folder / facts.file, stream, i, filled, facts.first, facts.last)
            shards.append(shard)
            try:
                size = os.stat(shard.path).st_size
            except FileNotFoundError:
                missing.append(facts.file)
            else:
                if size != facts.n_bytes:
                    raise DamagedError(
                        f"{shard.path} has {size:,} of {facts.n_bytes:,} bytes; restore a copy"
                    )
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise DamagedError(
                f"{folder} lacks shards of its {MANIFEST}: {', '.join(missing[:3])}{more}; restore them"
            )
        if (tail := read_tail(folder, stream, self._columns)) is not None:
            if shards and tail.first <= shards[-1].last:
                raise DamagedError(
                    f"{tail.path} begins with number {tail.first}, expected one after {shards[-1].last}, the last before it; "
                    "restore a copy"
                )
            shards.append(
                _Shard(tail.path, stream, len(shards), tail.filled, tail.first, tail.last, tail.layout)
            )
        return shards

    def _all_numbers(self) -> range | Array:
        """Return the numbers of all samples in order."""
        world_size = self.world_size
        parts: list[range | Array] = []
        for shards in self._shards:
            gaps = any(a.last + world_size != b.first for a, b in itertools.pairwise(shards))
            if gaps or not all(shard.is_dense for shard in shards):
                parts.append(np.concatenate([self._numbers(shard) for shard in shards]))
            else:
                parts.append(
                    range(shards[0].first, shards[-1].last + world_size, world_size) if shards else range(0)
                )
        first = parts[0]
        if (
            all(isinstance(one, range) and len(one) == len(first) for one in parts)
            and len({one[0] // world_size for one in parts if len(one)}) < 2
        ):
            return range(first[0], first[0] + world_size * len(first)) if len(first) else range(0)
        return np.sort(np.concatenate([np.asarray(one, np.uint64) for one in parts])).astype(np.int64)

    def _numbers(self, shard: _Shard) -> Array:
        """Return the numbers in a shard."""
        if shard.is_dense:
            return np.arange(shard.first, shard.last + 1, self.world_size, dtype=np.uint64)
        if shard.path not in self._numbers_of:
            self._numbers_of[shard.path] = self._checked_numbers(shard, self._file(shard))
        return self._numbers_of[shard.path]

    def _checked_numbers(self, shard: _Shard, file: ShardFile) -> Array:
        """Read the numbers in a shard, which rise."""
        numbers = file.numbers()
        steps: Array = np.diff(numbers.view(np.int64))
        wrong = np.flatnonzero((steps <= 0) | (steps % self.world_size != 0))
        if len(wrong):
            row = int(wrong[0])
            raise DamagedError(
                f"{shard.path} has number {numbers[row + 1]} after {numbers[row]}, expected numbers that rise in steps of "
                f"{self.world_size}; restore a copy"
            )
        return numbers

    def _runs(self, numbers: Sequence[int]) -> Iterator[tuple[_Shard, int, int, int]]:
        """Yield runs of samples that lie one after the other: their shard, the first row in it, and where they go."""
        n, step = len(numbers), self.world_size
        is_even = isinstance(numbers, range) and numbers.step == step
        start = 0
        while start < n:
            number = int(numbers[start])
            shard, row = self._find(number)
            stop = start + 1
            if shard.is_dense:
                end = min(n, start + shard.filled.n - row)
                if is_even:
                    stop = end
                else:
                    while stop < end and numbers[stop] == number + (stop - start) * step:
                        stop += 1
            yield shard, row, start, stop
            start = stop

    def _find(self, number: int) -> tuple[_Shard, int]:
        rank = number % self.world_size
        shards = self._shards[rank]
        i = bisect.bisect_right(self._firsts[rank], number) - 1
        if number >= 0 and i >= 0 and number <= (shard := shards[i]).last:
            if shard.is_dense:
                return shard, (number - shard.first) // self.world_size
            found = self._numbers(shard)
            row = int(np.searchsorted(found, number))
            if found[row] == number:
                return shard, row
        have = f"{self.numbers[0]} to {self.numbers[-1]}" if len(self) else "none"
        raise ConfigError(f"recording {self.folder} has no sample {number}: it has the numbers {have}")

    def _file(self, shard: _Shard) -> ShardFile:
        """Return the file of a shard, which is opened if it is not."""
        file = self._files.get(shard.path)
        if file is None:
            if len(self._files) >= _MOST_OPEN:
                self._files.popitem(last=False)[1].close()
            file = self._files[shard.path] = self._opened(shard)
        self._files.move_to_end(shard.path)
        return file

    def _opened(self, shard: _Shard) -> ShardFile:
        try:
            file = self._file_of(shard)
        except DamagedError:
            if shard.path.suffix != ".open" or shard.path.exists():
                raise
            # Its writer has closed it meanwhile, with more samples.
            shards = self._current_shards(shard.path.parent)
            if len(shards) <= shard.index or shards[shard.index].stream.recording != shard.stream.recording:
                raise
            file = self._file_of(shards[shard.index])
        try:
            ends = np.empty(2, np.uint64)
            file.read(SEQUENCE, 0, ends[:1])
            file.read(SEQUENCE, shard.filled.n - 1, ends[1:])
            if ends.tolist() != [shard.first, shard.last]:
                raise DamagedError(
                    f"{shard.path} has the numbers {ends[0]} to {ends[1]}, and its {MANIFEST} says {shard.first} to {shard.last}; "
                    "restore copies of both"
                )
        except BaseException:
            file.close()
            raise
        return file

    def _file_of(self, shard: _Shard) -> ShardFile:
        columns, filled = self._columns, shard.filled
        layout = shard.layout or Layout(shard.stream, columns, shard.index, filled.n, filled.n_bytes)
        return ShardFile(shard.path, columns, layout, filled)


def _reopened(folder: Path, config: BatchConfig | None) -> Recording:
    return Recording(folder, batch_config=config)


def _folders(folder: Path) -> list[Path]:
    """Return the folders of all ranks, by rank."""
    if not folder.is_dir():
        return [folder]
    found = [
        (int(name[1]), int(name[2]), folder / name[0])
        for one in os.listdir(folder)
        if (name := re.fullmatch(r"rank-(\d+)-of-(\d+)", one))
    ]
    if not found:
        return [folder]
    sizes = {world_size for _, world_size, _ in found}
    if (folder / MANIFEST).exists():
        sizes.add(1)
    if len(sizes) > 1:
        raise ConfigError(
            f"{folder} has recordings of {' and '.join(map(str, sorted(sizes)))} ranks; move one of them to another folder"
        )
    ranks, (world_size,) = {rank for rank, _, _ in found}, sizes
    missing = next((rank for rank in range(world_size) if rank not in ranks), None)
    if missing is not None:
        raise DamagedError(f"{folder} lacks the recording of rank {missing} of {world_size}; restore it")
    return [path for _, _, path in sorted(found)]


def _check_part(folder: Path, facts: StreamFacts, rank: int, first: StreamFacts) -> None:
    """Check that a folder is that of a rank of the same recording."""
    for name, expected in (
        ("product", first.product),
        ("digest", first.digest),
        ("ordered", first.ordered),
        ("world_size", first.world_size),
        ("rank", rank),
    ):
        if getattr(facts, name) != expected:
            raise DamagedError(
                f"{folder / MANIFEST} has {name} {getattr(facts, name)!r}, expected {expected!r}: it is of another recording"
            )
