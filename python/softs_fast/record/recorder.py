"""Records batches beside training: a loader copies them into blocks of memory, and a thread writes these."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from .. import _core, kernels
from ..configs import BatchConfig
from ..durable import Lock
from ..errors import ConfigError, SoftsError
from ..process import check_process, join
from .columns import SEQUENCE, Array, Column, Rows, columns_of, first_difference, row_bytes, rows_of
from .folder import Folder
from .manifest import MANIFEST, StreamFacts, rank_folder, rank_folders, read_manifest
from .options import RecordOptions
from .shard_writer import ShardWriter

__all__ = ["Recorder"]

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 4 << 20
_LEAST_BLOCKS = 3
#: A block that is not full is written after this time, seconds.
_FLUSH_S = 1.0


class Recorder:
    """Records the samples of one product that a rank hands out; continues what its folder has.

    Args:
        options: Options of the recording.
        product: The product.
        config: Config of the samples.
        ordered: Whether positions count the samples of an ordered stream; otherwise samples are numbered as they come.
        rank: Rank of this process among those that share the stream.
        world_size: Number of these processes; with more than one each has a folder inside that of the options.

    Raises:
        ConfigError: The folder has a recording of something else, which the text names, another process writes to it, it
            cannot be written, or such samples cannot be recorded.
        DamagedError: What the folder has is damaged.
    """

    def __init__(
        self,
        options: RecordOptions,
        product: str,
        config: BatchConfig,
        *,
        ordered: bool,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._config, self._columns = config, columns_of(config)
        self._product, self._ordered = product, ordered
        self._rank, self._world_size = rank, world_size
        self._pid, self._lock = os.getpid(), threading.Lock()
        folder = options.path if world_size == 1 else options.path / rank_folder(rank, world_size)
        self._what = f"recording {folder}"
        with ExitStack() as opened:
            try:
                self._check_ranks(options.path)
                options.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                lock = Lock(folder / ".lock", self._what)
                opened.callback(lock.close)
                writer = ShardWriter(folder, self._stream(folder), options.shard_bytes)
            except OSError as error:
                raise ConfigError(f"{self._what} cannot be written: {error}; use another folder") from None
            opened.pop_all()
        self._blocks = _Blocks(self._columns, options, self._what, writer, lock)
        # Also at the end of a process that has not closed it.
        self._finalizer = weakref.finalize(self, _Blocks.finish, self._blocks)

    @property
    def n_dropped(self) -> int:
        """Samples that were left out."""
        return self._blocks.n_dropped

    def record(self, product: str, position: int, batch: Any) -> None:
        """Record a batch, which the caller may change afterwards. Skip samples of which the recording has the numbers already.

        Args:
            product: Product of the samples.
            position: Samples of the stream that this rank has handed out before; it is used in an ordered stream only.
            batch: Batch on any device, `{name: dtype [n, *shape]}`.

        Raises:
            ConfigError: The product is another one, or the batch does not fit the config.
            SoftsError: The recording cannot be written, and the policy is `"wait"`; the text names the cause, and the first sample
                that was in memory and is lost.
            ForkedError: This is a fork of the process that made the recorder.
        """
        check_process(self._pid, self._what)
        if product != self._product:
            raise ConfigError(
                f"{self._what} is of product {self._product!r}, and the loader went to {product!r}; record each product in a "
                "folder of its own, by a loader of its own"
            )
        with self._lock:
            # Also after a handler of a signal has ended `put` in the midst.
            end = self._blocks.last + self._world_size
            first = self._rank + self._world_size * position if self._ordered else end
            numbers = np.arange(_n_rows(batch), dtype=np.uint64) * self._world_size + first
            rows = rows_of(self._config, self._columns, batch, numbers)
            if n_known := min(rows.n, max(0, -(-(end - first) // self._world_size))):
                rows = rows.cut(n_known, rows.n)
            if first > end > self._rank and self._blocks.waits:
                missing = range(end, first, self._world_size)
                logger.warning("%s lacks %d samples before number %d", self._what, len(missing), first)
            if rows.n:
                self._blocks.put(rows)

    def close(self) -> None:
        """Write what is left, close the open shard, and end the thread. Idempotent, also if it was interrupted.

        Raises:
            SoftsError: The recording cannot be written, and that has not been raised before.
        """
        self._blocks.finish()
        self._finalizer.detach()
        if not self._blocks.was_raised:
            self._blocks.check()

    def _check_ranks(self, folder: Path) -> None:
        """Check that a folder has no recording of another number of ranks: readers would see one of the two."""
        if others := rank_folders(Folder(folder).sizes()).keys() - {self._world_size}:
            raise ConfigError(
                f"{folder} has a recording of world_size={min(others)}, and this loader has world_size={self._world_size}; use "
                "another folder"
            )

    def _stream(self, folder: Path) -> StreamFacts:
        """Return the facts of the recording that a folder has, or those of a new one."""
        facts = {
            "product": self._product,
            "ordered": self._ordered,
            "rank": self._rank,
            "world_size": self._world_size,
        }
        if not any(name == MANIFEST or name.startswith("shard-") for name in os.listdir(folder)):
            return StreamFacts.of(
                self._config,
                **facts,
                recording=secrets.token_hex(8),
                shard_bytes=1,
                host=os.uname().nodename,
                version=_core.__version__,
                began_s=time.time(),
            )
        stream = read_manifest(Folder(folder))
        if difference := stream.difference(**facts):
            raise ConfigError(f"{self._what} has {difference}, as this loader has; use another folder")
        if difference := first_difference(stream.config, self._config):
            raise ConfigError(f"{self._what} has other samples: {difference}; use another folder")
        return stream


class _Blocks:
    """The blocks between a loader and the thread that writes them, which is the only one to use the writer.

    A handler of a signal may raise between any two steps of the loader. So each of its changes is one assignment or one call, and it
    locks and waits by what is written in C: `threading.Condition` may stay locked, and `Thread.join` takes the thread for ended.
    """

    def __init__(
        self, columns: Sequence[Column], options: RecordOptions, what: str, writer: ShardWriter, lock: Lock
    ) -> None:
        self._columns, self._what, self._writer, self._lock = columns, what, writer, lock
        self.waits = options.policy == "wait"
        self._block_rows = max(1, _BLOCK_BYTES // row_bytes(columns))
        self._n_blocks = max(_LEAST_BLOCKS, options.buffer_bytes // (self._block_rows * row_bytes(columns)))
        self._free: list[_Block] = []
        # All but the last one are full.
        self._queue: deque[_Block] = deque()
        self._writing: _Block | None = None
        self._last = writer.stream.end - writer.stream.world_size
        self._mutex = threading.Lock()
        self._to_write: SimpleQueue[None] = SimpleQueue()
        self._written: SimpleQueue[None] = SimpleQueue()
        self._is_ending = self._has_ended = False
        self._error: Exception | None = None
        self._failure = ""
        self.was_raised = False
        self.n_dropped = writer.stream.dropped
        self._pid = os.getpid()
        # It must not keep a process from its end, which closes the recording.
        self._thread = threading.Thread(target=self._run, name="softs-record", daemon=True)
        self._thread.start()

    @property
    def last(self) -> int:
        """Number of the last sample of the recording; a step below the first one if there is none."""
        with self._mutex:
            return [self._last, *[block.last for block in self._queue if block.n]][-1]

    def put(self, rows: Rows) -> None:
        """Copy samples into blocks: all of them, or none if the policy is `"drop"` and there is no room.

        Raises:
            ConfigError: There is never room for so many.
            SoftsError: as `check`.
        """
        done = 0
        while True:
            with self._mutex:
                self.check()
                if self._is_ending:
                    raise SoftsError(f"{self._what} is closed")
                if not self.waits and not self._has_room(rows.n):
                    self.n_dropped += rows.n
                    return
                done += self._fill(rows.cut(done, rows.n))
            if done == rows.n:
                return
            _wait(self._written)

    def check(self) -> None:
        """Raise what has ended the recording, if its policy is `"wait"`.

        Raises:
            SoftsError: The recording cannot be written.
        """
        if self._error is not None and self.waits:
            self.was_raised = True
            raise SoftsError(self._failure) from self._error

    def finish(self) -> None:
        """Write everything, and wait until it is written. Idempotent; a fork does nothing."""
        if os.getpid() != self._pid:
            return
        # Without the lock: the garbage collector may call this in a thread that has it.
        self._is_ending = True
        _wake(self._to_write)
        if threading.current_thread() is not self._thread:
            while not self._has_ended:
                _wait(self._written)
            join(self._thread)

    @property
    def _n_free(self) -> int:
        return self._n_blocks - len(self._queue) - (self._writing is not None)

    def _has_room(self, n: int) -> bool:
        if n > self._n_blocks * self._block_rows:
            raise ConfigError(
                f"{self._what}: buffer_bytes has room for {self._n_blocks * self._block_rows} samples, expected at least {n}, those "
                'of a batch, with the policy "drop"; raise it'
            )
        filling = self._block_rows - self._queue[-1].n if self._queue else 0
        return self._error is None and n <= filling + self._n_free * self._block_rows

    def _fill(self, rows: Rows) -> int:
        """Copy samples, from the first one on, while there is room; return how many."""
        done = 0
        while done < rows.n and (block := self._block_with_room()) is not None:
            done += block.fill(rows.cut(done, min(rows.n, done + self._block_rows - block.n)))
            if block.n == self._block_rows:
                _wake(self._to_write)
        return done

    def _block_with_room(self) -> _Block | None:
        if not self._queue or self._queue[-1].n == self._block_rows:
            if not self._n_free:
                return None
            self._queue.append(self._free.pop() if self._free else _Block(self._columns, self._block_rows))
        return self._queue[-1]

    def _run(self) -> None:
        try:
            while (block := self._next_block()) is not None:
                self._writer.append(block.rows())
                self._writer.note_dropped(self.n_dropped)
                with self._mutex:
                    block.clear()
                    self._free.append(block)
                    self._writing = None
                _wake(self._written)
            self._writer.note_dropped(self.n_dropped)
            self._writer.close()
        except Exception as error:
            with self._mutex:
                self._fail(error)
            logger.error("%s", self._failure)
            self._writer.abandon()
            if not self.waits:
                self._count_dropped()
        finally:
            self._lock.close()
            self._has_ended = True
            _wake(self._written)

    def _next_block(self) -> _Block | None:
        """Wait for a block to write; None at the end."""
        is_due = False
        while True:
            with self._mutex:
                if self._queue and (is_due or self._is_ending or self._queue[0].n == self._block_rows):
                    self._writing = block = self._queue.popleft()
                    if block.n:
                        self._last = block.last
                    return block
                if self._is_ending:
                    return None
            is_due = not _wait(self._to_write)

    def _fail(self, error: Exception) -> None:
        left = [block.numbers for block in (self._writing, *self._queue) if block is not None]
        lost = [int(number) for numbers in left for number in numbers[numbers >= self._writer.end]]
        cause = error.strerror if isinstance(error, OSError) and error.strerror else error
        self._failure = f"{self._what} ends after {self._writer.n} samples: {cause}; they can be read: make room, or use another folder"
        if lost:
            self._failure += (
                f"; {len(lost)} samples that were in memory are lost, number {lost[0]} is the first"
            )
        self.n_dropped += len(lost)
        self._error = error

    def _count_dropped(self) -> None:
        """Wait for the end, and write how many samples were left out until then."""
        while not self._is_ending:
            _wait(self._to_write)
        self._writer.note_dropped(self.n_dropped)
        with suppress(OSError):
            self._writer.close()


class _Block:
    """Memory for some samples."""

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self._columns = columns
        # Only what is filled ever gets pages.
        self._memory = {column.name: column.empty(n * column.most) for column in columns}
        self.clear()

    @property
    def n(self) -> int:
        """Number of samples."""
        return self._ends[SEQUENCE]

    @property
    def numbers(self) -> Array:
        """Numbers of the samples, uint64 [n]."""
        return self._memory[SEQUENCE][: self.n]

    @property
    def last(self) -> int:
        """Number of the last sample, if there is one."""
        return int(self.numbers[-1])

    def clear(self) -> None:
        """Have no samples."""
        self._ends = dict.fromkeys(self._memory, 0)

    def fill(self, rows: Rows) -> int:
        """Copy samples, for which there is room; return how many. If this is interrupted, it has all of them or none."""
        ends = {name: end + len(rows.arrays[name]) for name, end in self._ends.items()}
        for name, array in rows.arrays.items():
            kernels.copy(array, self._memory[name][self._ends[name] : ends[name]])
        self._ends = ends
        return rows.n

    def rows(self) -> Rows:
        """Return the samples, on this memory."""
        return Rows(self._columns, {name: self._memory[name][:end] for name, end in self._ends.items()})


def _wake(event: SimpleQueue[None]) -> None:
    """Have the thread go on that waits for an event, or that is the next to do so."""
    if event.empty():
        event.put(None)


def _wait(event: SimpleQueue[None]) -> bool:
    """Wait for an event; return whether it came in the time after which a block is written."""
    with suppress(Empty):
        event.get(timeout=_FLUSH_S)
        return True
    return False


def _n_rows(batch: Any) -> int:
    """Return the number of samples in a batch; 0 if it is none."""
    with suppress(TypeError, AttributeError, StopIteration):
        value = next(iter(batch.values()))
        if isinstance(value, tuple):
            # `TopKLogits`, or a `RaggedTensor`: a field that has an item for each sample.
            value = value[-1]
        return len(value)
    return 0
