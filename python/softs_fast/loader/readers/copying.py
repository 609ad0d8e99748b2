"""From slots to tensors in one copy: whole batches, in memory that later batches use again, or single samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ... import _core
from ...codecs import read_into
from ...configs import BatchConfig, check_length
from ...market import Client, Medium, SegmentMedium, own_segment
from ...tensors import torch_dtype
from ..plan import IterationPlan
from ..sample_iterator import Reader
from .batch_memory import BatchMemory, Tensors
from .items import pinned

__all__ = [
    "GatherAheadReader",
    "GatherReader",
    "MappedReader",
    "RowReader",
    "SampleReader",
    "SampleRows",
    "batch_reader",
    "has_rows",
    "sample_bytes",
]


class SampleReader:
    """Copies slots into tensors that own their memory, so that they can be sent to another process.

    Args:
        config: Config of the tensors that a slot holds.
        medium: The slots.
    """

    def __init__(self, config: BatchConfig, medium: Medium) -> None:
        self._config = config
        plain = has_rows(config) and own_segment(medium) is not None and not config.has_codecs
        plain = plain and config.ragged is None
        self._read = sample_bytes(config, medium)
        self._specs = list(config.specs) if plain else None
        self._copy = _copier(config, medium) if plain else None
        self._sample: Tensors | None = None

    def read(self, slot_id: int) -> None:
        """Copy a slot; the copy replaces one that `take` has not handed out.

        Raises:
            ConfigError: the medium gave another number of bytes than a sample has.
            WireError: the sample is not what a codec writes.
            SegmentError: there is no such slot, or the medium is closed.
        """
        if self._specs is None or self._copy is None:
            self._sample = self._config.decode(self._read(slot_id))
            return
        sample = {
            spec.name: torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="cpu")
            for spec in self._specs
        }
        self._copy(slot_id, [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in sample.values()])
        self._sample = sample

    def take(self) -> Tensors:
        """Hand out the copy, `{name: dtype [*shape]}`; `read` must have been called since the last time."""
        sample, self._sample = self._sample, None
        assert sample is not None
        return sample


class SampleRows:
    """Reads several samples, each copied into tensors of its own, from a medium of any kind.

    Args:
        config: Config of the tensors that a slot holds.
        client: Client that has the slots.
        n_rows: Samples per item.
    """

    #: The user gets copies, so there are always slots for more.
    is_starved = False

    def __init__(self, config: BatchConfig, client: Client, n_rows: int) -> None:
        self.n_rows = n_rows
        self._client = client
        self._reader = SampleReader(config, client.medium)
        self._rows: list[Tensors] = []

    def begin(self, product_id: str) -> None:
        """Nothing: samples are taken one by one."""

    def forget(self) -> None:
        """Drop the samples that were not handed out."""
        self._rows.clear()

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Copy sample `done`, waiting up to timeout_ms for it.

        Returns:
            How many samples there are now.

        Raises:
            ConfigError: the medium gave another number of bytes than a sample has.
            WireError: the sample is not what a codec writes.
            SegmentError: the medium is closed.
        """
        slot_id = self._client.request_sample(product_id, timeout_ms=timeout_ms)
        if slot_id is None:
            return done
        try:
            self._reader.read(slot_id)
        finally:
            self._client.release_slot(slot_id)
        self._rows[done:] = [self._reader.take()]
        return done + 1

    def take(self) -> list[Tensors]:
        """Hand out the samples, `{name: dtype [*shape]}` each."""
        rows, self._rows = self._rows, []
        return rows


class _BatchReader:
    """Fills batches in memory that later batches use again; the user gets copies, so there are always slots for more.

    Args:
        config: Config of the tensors that a slot holds; one for which `has_rows` is true.
        client: Client that has the slots.
        plan: Samples per batch, and what becomes of the batches.
    """

    is_starved = False

    def __init__(self, config: BatchConfig, client: Client, plan: IterationPlan) -> None:
        assert plan.batch_size is not None
        self.n_rows = plan.batch_size
        self._client = client
        self._memory = BatchMemory(config, plan.batch_size, plan.pins, plan.n_held)

    def begin(self, product_id: str) -> None:
        """Nothing: samples are taken one by one."""

    def forget(self) -> None:
        """Nothing was begun."""

    def take(self) -> Tensors:
        """Hand out the batch, `{name: dtype [n_rows, *shape]}`; all rows must have been filled."""
        return self._memory.take()


class GatherReader(_BatchReader):
    """Fills batches by native calls, each of which copies all samples that are there. The slots are in a segment."""

    def __init__(self, config: BatchConfig, client: Client, plan: IterationPlan) -> None:
        super().__init__(config, client, plan)
        self._gather = client.gather
        is_plain = not config.has_codecs and config.ragged is None
        self._is_worth_it = is_plain and self.n_rows * config.nbytes() >= _WORTH_A_THREAD
        self._ahead: _core.Ahead | None = None

    def begin(self, product_id: str) -> None:
        """Begin to copy what is there of the next batch, if there is much to copy."""
        if self._is_worth_it:
            self._ahead = self._client.gather_ahead(product_id, self.n_rows, self._memory.lend())

    def forget(self) -> None:
        """Drop what was begun."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.finish()

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Copy samples into the rows from `done` on, waiting up to timeout_ms for the first.

        Returns:
            How many rows are filled now.

        Raises:
            WireError: a sample is not what a codec writes.
        """
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            done = ahead.finish()
            if done == self.n_rows:
                return done
        return self._gather(product_id, self.n_rows, done, self._memory.lend(), timeout_ms)


class GatherAheadReader:
    """Keeps a queue of batches that native threads fill in order, while the caller works with earlier ones.

    Args:
        config: Config of the tensors that a slot holds; one for which `has_rows` is true.
        client: Client that has the slots, in a segment.
        plan: Samples per batch, threads that copy, batches in the queue, and whether these are pinned. Samples are
            taken in order for any number of threads.
    """

    #: The user gets copies, so there are always slots for more.
    is_starved = False

    def __init__(self, config: BatchConfig, client: Client, plan: IterationPlan) -> None:
        assert plan.batch_size is not None
        self.n_rows = n_rows = plan.batch_size
        self._client = client
        self._pipeline = client.gather_pipeline(plan.n_threads)
        # Each is lent to one batch of the queue at a time.
        self._free = deque(BatchMemory(config, n_rows, plan.pins, plan.n_held) for _ in range(plan.n_ahead))
        self._queue: deque[BatchMemory] = deque()
        self._is_complete = False
        # Samples that the client has handed out, when they were counted last.
        self._taken = 0

    def begin(self, product_id: str) -> None:
        """Nothing: the queue is filled in any case."""

    def forget(self) -> None:
        """Drop what was gathered and not handed out."""
        self._pipeline.take_back()
        self._free.extend(self._queue)
        self._queue.clear()
        self._is_complete = False

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Wait up to timeout_ms for the oldest batch of the queue.

        Returns:
            `n_rows` if it is complete; else `done` if no sample came, and another number if samples came.

        Raises:
            WireError: a sample is not what a codec writes.
            SegmentError: the client is closed.
        """
        if self._pipeline.has_ended and not self._is_complete:
            # Batches before a failure are handed out, and the failure is raised, before the queue is dropped.
            self._is_complete = self._pipeline.wait(0)
            if not self._is_complete:
                self.forget()
        while self._free:
            memory = self._free[0]
            self._pipeline.submit(product_id, self.n_rows, memory.lend())
            self._queue.append(self._free.popleft())
        self._is_complete = self._is_complete or self._pipeline.wait(timeout_ms)
        if self._is_complete:
            return self.n_rows
        self._client.maintain()
        taken = self._client.position(product_id)
        has_progress, self._taken = taken != self._taken, taken
        return 1 - done if has_progress and self.n_rows > 1 else done

    def take(self) -> Tensors:
        """Hand out the oldest batch, `{name: dtype [n_rows, *shape]}`; it must be complete."""
        memory = self._queue.popleft()
        self._free.append(memory)
        self._is_complete = False
        return memory.take()


class RowReader(_BatchReader):
    """Fills batches one row at a time, from a medium of any kind."""

    def __init__(self, config: BatchConfig, client: Client, plan: IterationPlan) -> None:
        super().__init__(config, client, plan)
        self._copy = _copier(config, client.medium)

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Copy a sample into row `done`, waiting up to timeout_ms for it.

        Returns:
            How many rows are filled now.

        Raises:
            ConfigError: the medium gave another number of bytes than a sample has.
            WireError: the sample is not what a codec writes.
            SegmentError: the medium is closed.
        """
        slot_id = self._client.request_sample(product_id, timeout_ms=timeout_ms)
        if slot_id is None:
            return done
        try:
            self._memory.lend()
            self._copy(slot_id, self._memory.row(done))
        finally:
            self._client.release_slot(slot_id)
        return done + 1


class MappedReader:
    """Hands out what a function makes of the items of another reader.

    Args:
        reader: makes the items; owned by this one.
        function: called with each item when it is handed out.
    """

    def __init__(self, reader: Reader, function: Callable[[Any], Any]) -> None:
        self.n_rows = reader.n_rows
        self.begin, self.forget, self.fill = reader.begin, reader.forget, reader.fill
        self._reader = reader
        self._function = function

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots."""
        return self._reader.is_starved

    def take(self) -> Any:
        """Hand out what the function makes of the item."""
        return self._function(self._reader.take())


def batch_reader(
    config: BatchConfig, client: Client, plan: IterationPlan
) -> GatherReader | GatherAheadReader | RowReader | MappedReader:
    """Return the fastest reader of batches that can read this client's medium."""
    assert plan.batch_size is not None
    if own_segment(client.medium) is not None:
        if plan.n_threads > 0:
            return GatherAheadReader(config, client, plan)
        return GatherReader(config, client, plan)
    if config.ragged is not None:
        # Where a row begins is known only when the rows before it are there.
        batches = MappedReader(SampleRows(config, client, plan.batch_size), config.collate)
        return MappedReader(batches, pinned) if plan.pins else batches
    return RowReader(config, client, plan)


def has_rows(config: BatchConfig) -> bool:
    """Return whether samples are what `BatchConfig.decode` makes of them, and not what a subclass does."""
    return getattr(config.decode, "__func__", None) is BatchConfig.decode


def sample_bytes(config: BatchConfig, medium: Medium) -> Callable[[int], bytes]:
    """Return a function that copies a slot: all of it, or only its sample where tensors are ragged.

    Raises (the returned function):
        WireError: a tensor has a length that no sample has.
        SegmentError: there is no such slot, or the medium is closed.
    """
    ragged = config.ragged
    if ragged is None or not isinstance(medium, SegmentMedium) or own_segment(medium) is None:
        return lambda slot_id: medium.read(slot_id)
    read_head = medium.read_head

    def read_sample(slot_id: int) -> bytes:
        # What the supplier changes in between is refused when the sample is decoded.
        lengths = read_head(slot_id, ragged.lengths_bytes)
        return read_head(slot_id, config.sample_nbytes(lengths))

    return read_sample


def _copier(config: BatchConfig, medium: Medium) -> Callable[[int, Sequence[Any]], None]:
    """Return a function that copies a slot to the bytes of its tensors, given in the order of `specs`.

    A tensor with a codec has as many as it has parts, and is decoded.
    """
    starts = [config.get_offset(spec.name) for spec in config.specs]
    n_bytes = config.nbytes()

    if config.has_codecs:
        parts = [
            (spec.name, part, start)
            for spec, start in zip(config.specs, starts, strict=True)
            for part in spec._parts()
        ]

        def decode_parts(slot_id: int, targets: Sequence[Any]) -> None:
            data = medium.read(slot_id)
            check_length(data, n_bytes)
            for (name, part, start), target in zip(parts, targets, strict=True):
                if len(target):
                    read_into(name, part, [data], start, target)

        return decode_parts

    if isinstance(medium, SegmentMedium) and own_segment(medium) is not None:
        copy_part = medium.read_into

        def copy_parts(slot_id: int, targets: Sequence[Any]) -> None:
            for start, target in zip(starts, targets, strict=True):
                copy_part(slot_id, target, start)

        return copy_parts

    def copy_whole(slot_id: int, targets: Sequence[Any]) -> None:
        data = medium.read(slot_id)
        check_length(data, n_bytes)
        view = memoryview(data).cast("B")
        for start, target in zip(starts, targets, strict=True):
            target[:] = view[start : start + len(target)]

    return copy_whole


#: Bytes of a batch that take longer to copy than a thread takes to start.
_WORTH_A_THREAD = 256 << 10
