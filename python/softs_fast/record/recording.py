"""A recording that is read: samples by their numbers, from the shards of all ranks."""

from __future__ import annotations

import bisect
import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..configs import BatchConfig
from ..errors import ConfigError, DamagedError
from ..process import Closing, raise_descriptor_limit, renewed_in_forks
from .columns import SEQUENCE, Array, batch_of, columns_of, first_difference, samples_of, served_config
from .folder import Folder
from .manifest import MANIFEST, StreamFacts, rank_folders, read_manifest
from .shards import Filled, Shard, ShardFile, read_tail

__all__ = ["Recording"]

#: Files that are open at a time.
_MOST_OPEN = 64
_VERIFIED_AT_A_TIME = 4


class Recording(Closing):
    """A folder that a loader or ``softs-fast record`` has written, of one rank or of all; it may still be written to.

    Files are opened when they are needed. What was recorded after this was made is not seen.

    The folder may be a URL of fsspec: a shard is copied to this host when one of its samples is needed, and compared with its
    checksums. The copies have no names, so nothing remains of them when the process ends; they lie where `tempfile` puts files.
    Each process has its own.

    Args:
        folder: Folder of the recording, or a URL such as ``s3://bucket/epoch``, which needs ``softs-fast[record]`` and the package of
            fsspec for the store.
        batch_config: Config that the samples must have; None: any.
        verify: Whether to compare all samples with their checksums now, which reads all files.
        cache_bytes: Most bytes of copied shards, of which the ones used last are kept; one shard is kept at least.

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
        ConfigError: The folder is not a recording, it is of another version, `cache_bytes` is below 1, fsspec does not know the URL or
            lacks a package, or `batch_config` differs from the recorded config: the text names the first difference.
        DamagedError: A file is missing, cut short, altered or of another recording; the text names it.
        OSError: A file cannot be read; in a store, after some attempts.

    Example:
        >>> from softs_fast.record import Recording
        >>> with Recording("epoch") as recording:  # doctest: +SKIP
        ...     print(len(recording), recording.config.tensor_names)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        batch_config: BatchConfig | None = None,
        verify: bool = False,
        cache_bytes: int = 4 << 30,
    ) -> None:
        if not isinstance(cache_bytes, int) or cache_bytes < 1:
            raise ConfigError(f"cache_bytes must be a whole number and at least 1, got {cache_bytes!r}")
        self.folder = os.fspath(folder)
        self._given = {"batch_config": batch_config, "cache_bytes": cache_bytes}
        self._cache_bytes = cache_bytes
        self._lock: threading.Lock
        renewed_in_forks(self, "_lock")
        self._files: OrderedDict[str, ShardFile] = OrderedDict()
        self._numbers_of: dict[str, Array] = {}
        here = Folder(folder)
        if here.is_remote:
            # Each copy has one.
            raise_descriptor_limit()
        folders = _folders(here)
        parts = [_current(one) for one in folders]
        self._stream = stream = parts[0][0]
        sent = stream.config
        if batch_config is not None and (difference := first_difference(sent, batch_config)):
            raise ConfigError(f"recording {self.folder} has other samples: {difference}")
        if len(parts) != stream.world_size:
            raise ConfigError(
                f"{self.folder} has the samples of rank {stream.rank} of {stream.world_size}; give the folder that it is in"
            )
        facts = {name: getattr(stream, name) for name in ("product", "digest", "ordered", "world_size")}
        for rank, (other, _) in enumerate(parts):
            if difference := other.difference(**facts, rank=rank):
                raise DamagedError(
                    f"{folders[rank].path(MANIFEST)} has {difference}: it is of another recording"
                )
        self.product, self.ordered, self.world_size = stream.product, stream.ordered, stream.world_size
        self.config = served_config(sent)
        self.n_dropped = sum(one.dropped for one, _ in parts)
        self._columns = columns_of(sent)
        # All but the numbers.
        self._read = [column for column in self._columns if column.name != SEQUENCE]
        # By rank.
        self._shards = [shards for _, shards in parts]
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
            missing = np.setdiff1d(np.arange(span.start, span.stop), self.numbers, assume_unique=True)
            if len(missing):
                raise DamagedError(
                    f"recording {self.folder} lacks samples between its first and its last one: number {missing[0]} is the first; "
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
            "file": shard.path,
            "row": row,
            "rank": number % self.world_size,
            **facts,
        }

    def verify(self) -> None:
        """Compare all samples with their checksums, some files at a time.

        Raises:
            DamagedError, OSError: as for the class.
        """

        def check(shard: Shard) -> None:
            with contextlib.closing(self._opened(shard, verify=True)) as file:
                self._checked_numbers(shard, file)

        all_shards = [shard for shards in self._shards for shard in shards]
        n = _VERIFIED_AT_A_TIME
        if all_shards and all_shards[0].folder.is_remote:
            # Copies of so many are there at a time.
            largest = max(shard.layout_of(self._columns).end for shard in all_shards)
            n = max(1, min(n, self._cache_bytes // largest))
        with ThreadPoolExecutor(n, "softs-verify") as threads:
            for _ in threads.map(check, all_shards):
                pass

    def close(self) -> None:
        """Close the files; they are opened again when they are needed. Idempotent."""
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()

    def __del__(self) -> None:
        """Close the files."""
        for file in getattr(self, "_files", {}).values():
            file.close()

    def __reduce__(self) -> Any:
        """Open it anew in another process."""
        return _reopened, (self.folder, self._given)

    def _all_numbers(self) -> range | Array:
        """Return the numbers of all samples in order."""
        shards = [shard for shards in self._shards for shard in shards]
        if not shards:
            return range(0)
        first, last = min(shard.first for shard in shards), max(shard.last for shard in shards)
        # Each number is there once.
        if sum(shard.filled.n for shard in shards) == last - first + 1:
            return range(first, last + 1)
        return np.sort(np.concatenate([self._numbers(shard) for shard in shards])).astype(np.int64)

    def _numbers(self, shard: Shard) -> Array:
        """Return the numbers in a shard."""
        if shard.is_dense:
            return np.arange(shard.first, shard.last + 1, self.world_size, dtype=np.uint64)
        if shard.path not in self._numbers_of:
            self._numbers_of[shard.path] = self._checked_numbers(shard, self._file(shard))
        return self._numbers_of[shard.path]

    def _checked_numbers(self, shard: Shard, file: ShardFile) -> Array:
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

    def _runs(self, numbers: Sequence[int]) -> Iterator[tuple[Shard, int, int, int]]:
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

    def _find(self, number: int) -> tuple[Shard, int]:
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

    def _file(self, shard: Shard) -> ShardFile:
        """Return the file of a shard, which is opened if it is not."""
        file = self._files.get(shard.path)
        if file is None:
            # The bytes of copies; a folder of this host has none.
            n_bytes = shard.layout_of(self._columns).end if shard.folder.is_remote else 0
            while self._files and (
                n_bytes + sum(one.n_bytes for one in self._files.values()) > self._cache_bytes
                if n_bytes
                else len(self._files) >= _MOST_OPEN
            ):
                self._files.popitem(last=False)[1].close()
            file = self._files[shard.path] = self._opened(shard)
        self._files.move_to_end(shard.path)
        return file

    def _opened(self, shard: Shard, *, verify: bool = False) -> ShardFile:
        try:
            file = ShardFile(shard, self._columns)
        except DamagedError:
            if not shard.file.endswith(".open") or shard.file in shard.folder.sizes():
                raise
            # Its writer has closed it meanwhile, with more samples.
            stream, shards = _current(shard.folder)
            if len(shards) <= shard.index or stream.recording != shard.stream.recording:
                raise
            file = ShardFile(shards[shard.index], self._columns)
        try:
            if verify or shard.folder.is_remote:
                file.verify()
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


def _reopened(folder: str, given: dict[str, Any]) -> Recording:
    return Recording(folder, **given)


def _folders(folder: Folder) -> list[Folder]:
    """Return the folders of all ranks, by rank."""
    found = rank_folders(folder.sizes())
    if len(found) > 1:
        raise ConfigError(
            f"{folder} has recordings of {' and '.join(map(str, sorted(found)))} ranks; move one of them to another folder"
        )
    for world_size, ranks in found.items():
        missing = next((rank for rank in range(world_size) if rank not in ranks), None)
        if missing is not None:
            raise DamagedError(f"{folder} lacks the recording of rank {missing} of {world_size}; restore it")
        if world_size > 1:
            return [folder / ranks[rank] for rank in range(world_size)]
    return [folder]


def _current(folder: Folder) -> tuple[StreamFacts, list[Shard]]:
    """Return the manifest and the shards of a folder; look again if its writer has closed a shard meanwhile."""
    while True:
        sizes = folder.sizes()
        try:
            stream = read_manifest(folder)
            return stream, _shards_of(folder, stream, sizes)
        except DamagedError:
            if sizes.keys() == folder.sizes().keys():
                raise


def _shards_of(folder: Folder, stream: StreamFacts, sizes: Mapping[str, int | None]) -> list[Shard]:
    columns = columns_of(stream.config)
    shards, missing = [], []
    for i, facts in enumerate(stream.shards):
        try:
            pairs = [facts.tensors[column.name] for column in columns]
        except KeyError as error:
            raise DamagedError(
                f"{folder.path(MANIFEST)} is damaged: shard {i} lacks tensor {error}"
            ) from None
        filled = Filled(facts.n_samples, *zip(*pairs, strict=True))
        shards.append(Shard(folder, facts.file, stream, i, filled, facts.first, facts.last))
        if facts.file not in sizes:
            missing.append(facts.file)
        elif (size := sizes[facts.file]) is not None and size != facts.n_bytes:
            raise DamagedError(f"{shards[-1].path} has {size:,} of {facts.n_bytes:,} bytes; restore a copy")
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DamagedError(
            f"{folder} lacks shards of its {MANIFEST}: {', '.join(missing[:3])}{more}; restore them"
        )
    if (tail := read_tail(folder, sizes, stream, columns)) is not None:
        if shards and tail.first <= shards[-1].last:
            raise DamagedError(
                f"{tail.path} begins with number {tail.first}, expected one after {shards[-1].last}, the last before it; "
                "restore a copy"
            )
        shards.append(tail)
    return shards
