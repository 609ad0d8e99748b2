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
from typing import Any

import numpy as np

from .. import _core
from ..configs import BatchConfig
from ..durable import Lock
from ..errors import ConfigError, SoftsError
from ..process import check_process, join
from .columns import Column, Rows, columns_of, first_difference, row_bytes, rows_of
from .manifest import MANIFEST, StreamFacts, read_manifest
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
        folder = options.path if world_size == 1 else options.path / f"rank-{rank:05}-of-{world_size:05}"
        self._what = f"recording {folder}"
        with ExitStack() as opened:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = Lock(folder / ".lock", self._what)
                opened.callback(lock.close)
                writer = ShardWriter(folder, self._stream(folder), options.shard_bytes)
            except OSError as error:
                raise ConfigError(f"{self._what} cannot be written: {error}; use another folder") from None
            opened.pop_all()
        self._next, self._has_begun = writer.stream.end, bool(writer.stream.shards)
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
            SoftsError: The recording cannot be written, and the policy is `"wait"`; the text names the cause.
            ForkedError: This is a fork of the process that made the recorder.
        """
        check_process(self._pid, self._what)
        if product != self._product:
            raise ConfigError(
                f"{self._what} is of product {self._product!r}, and the loader went to {product!r}; record each product in a "
                "folder of its own, by a loader of its own"
            )
        with self._lock:
            first = self._rank + self._world_size * position if self._ordered else self._next
            numbers = np.arange(_n_rows(batch), dtype=np.uint64) * self._world_size + first
            rows = rows_of(self._config, self._columns, batch, numbers)
            if n_known := min(rows.n, max(0, -(-(self._next - first) // self._world_size))):
                rows = rows.cut(n_known, rows.n)
            if first > self._next and self._has_begun and self._blocks.waits:
                missing = range(self._next, first, self._world_size)
                logger.warning("%s lacks %d samples before number %d", self._what, len(missing), first)
            if rows.n and self._blocks.put(rows):
                self._next, self._has_begun = int(numbers[-1]) + self._world_size, True

    def close(self) -> None:
        """Write what is left, close the open shard, and end the thread. Idempotent.

        Raises:
            SoftsError: The recording cannot be written, and that has not been raised before.
        """
        self._finalizer.detach()
        self._blocks.finish()
        if not self._blocks.was_raised:
            self._blocks.check()

    def _stream(self, folder: Path) -> StreamFacts:
        """Return the facts of the recording that a folder has, or those of a new one."""
        if not (folder / MANIFEST).exists() and not any(
            name.startswith("shard-") for name in os.listdir(folder)
        ):
            return StreamFacts.of(
                self._config,
                recording=secrets.token_hex(8),
                product=self._product,
                ordered=self._ordered,
                rank=self._rank,
                world_size=self._world_size,
                shard_bytes=1,
                host=os.uname().nodename,
                version=_core.__version__,
                began_s=time.time(),
            )
        stream = read_manifest(folder)
        for name, here in (
            ("product", self._product),
            ("ordered", self._ordered),
            ("rank", self._rank),
            ("world_size", self._world_size),
        ):
            if (there := getattr(stream, name)) != here:
                raise ConfigError(
                    f"{self._what} has {name}={there!r}, and this loader {name}={here!r}; use another folder"
                )
        if difference := first_difference(stream.config, self._config):
            raise ConfigError(f"{self._what} has other samples: {difference}; use another folder")
        return stream


class _Blocks:
    """The blocks between a loader and the thread that writes them, which is the only one to use the writer."""

    def __init__(
        self, columns: Sequence[Column], options: RecordOptions, what: str, writer: ShardWriter, lock: Lock
    ) -> None:
        self._columns, self._what, self._writer, self._lock = columns, what, writer, lock
        self.waits = options.policy == "wait"
        self._block_rows = max(1, _BLOCK_BYTES // row_bytes(columns))
        self._n_left = max(_LEAST_BLOCKS, options.buffer_bytes // (self._block_rows * row_bytes(columns)))
        self._n_blocks = self._n_left
        self._free: list[_Block] = []
        self._full: deque[_Block] = deque()
        self._filling: _Block | None = None
        self._changed = threading.Condition()
        self._is_ending = False
        self._error: Exception | None = None
        self.was_raised = False
        self.n_dropped = writer.stream.dropped
        self._pid = os.getpid()
        # It must not keep a process from its end, which closes the recording.
        self._thread = threading.Thread(target=self._run, name="softs-record", daemon=True)
        self._thread.start()

    def put(self, rows: Rows) -> bool:
        """Copy samples into blocks, and return whether they are recorded: all of them or none.

        Raises:
            ConfigError: There is never room for so many.
            SoftsError: as `check`.
        """
        done = 0
        with self._changed:
            if not self.waits and not self._has_room(rows.n):
                self.n_dropped += rows.n
                return False
            while done < rows.n:
                self.check()
                if self._is_ending:
                    raise SoftsError(f"{self._what} is closed")
                block = self._filling = self._filling or self._take_free()
                if block is None:
                    self._changed.wait(_FLUSH_S)
                    continue
                done += block.fill(rows.cut(done, min(rows.n, done + self._block_rows - block.n)))
                if block.n == self._block_rows:
                    self._full.append(block)
                    self._filling = None
                    self._changed.notify_all()
        return True

    def check(self) -> None:
        """Raise what has ended the recording, if its policy is `"wait"`.

        Raises:
            SoftsError: The recording cannot be written.
        """
        if self._error is not None and self.waits:
            self.was_raised = True
            raise SoftsError(self._failure()) from self._error

    def finish(self) -> None:
        """Write everything, and wait until it is written. Idempotent; a fork does nothing."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        join(self._thread)

    def _has_room(self, n: int) -> bool:
        if n > self._n_blocks * self._block_rows:
            raise ConfigError(
                f"{self._what}: buffer_bytes has room for {self._n_blocks * self._block_rows} samples, expected at least {n}, those "
                'of a batch, with the policy "drop"; raise it'
            )
        filling = self._block_rows - self._filling.n if self._filling else 0
        return self._error is None and n <= filling + (len(self._free) + self._n_left) * self._block_rows

    def _take_free(self) -> _Block | None:
        if self._free:
            return self._free.pop()
        if not self._n_left:
            return None
        self._n_left -= 1
        return _Block(self._columns, self._block_rows)

    def _run(self) -> None:
        block: _Block | None = None
        try:
            while (block := self._next_block()) is not None:
                self._writer.append(block.rows())
                self._writer.note_dropped(self.n_dropped)
                with self._changed:
                    block.clear()
                    self._free.append(block)
                    self._changed.notify_all()
            self._writer.note_dropped(self.n_dropped)
            self._writer.close()
        except Exception as error:
            with self._changed:
                self._error = error
                left = (block, *self._full, self._filling)
                self.n_dropped += sum(one.n for one in left if one is not None)
                self._changed.notify_all()
            logger.error("%s", self._failure())
            self._writer.abandon()
        finally:
            self._lock.close()

    def _next_block(self) -> _Block | None:
        """Wait for a block to write; None at the end."""
        with self._changed:
            while not self._full:
                is_over = self._is_ending or not self._changed.wait(_FLUSH_S)
                if is_over and not self._full:
                    block, self._filling = self._filling, None
                    if block is not None or self._is_ending:
                        return block
            return self._full.popleft()

    def _failure(self) -> str:
        error = self._error
        cause = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"{self._what} ends after {self._writer.n} samples: {cause}; they can be read: make room, or use another folder"


class _Block:
    """Memory for some samples."""

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self._columns = columns
        # Only what is filled ever gets pages.
        self._memory = {column.name: column.empty(n * column.most) for column in columns}
        self.clear()

    def clear(self) -> None:
        """Have no samples."""
        self.n = 0
        self._ends = dict.fromkeys(self._memory, 0)

    def fill(self, rows: Rows) -> int:
        """Copy samples, for which there is room; return how many."""
        for name, array in rows.arrays.items():
            end = self._ends[name]
            self._ends[name] = end + len(array)
            np.copyto(self._memory[name][end : end + len(array)], array)
        self.n += rows.n
        return rows.n

    def rows(self) -> Rows:
        """Return the samples, on this memory."""
        return Rows(self._columns, {name: self._memory[name][:end] for name, end in self._ends.items()})


def _n_rows(batch: Any) -> int:
    """Return the number of samples in a batch; 0 if it is none."""
    with suppress(TypeError, AttributeError, StopIteration):
        value = next(iter(batch.values()))
        if isinstance(value, tuple):
            # `TopKLogits`, or a `RaggedTensor`: a field that has an item for each sample.
            value = value[-1]
        return len(value)
    return 0
