"""From slots to tensors in one copy: whole batches in memory that batches use in turn, or single samples."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from ... import _core
from ...codecs.parts import Part, read_into
from ...configs import BatchConfig
from ...configs.spec import check_length
from ...market import Client, Medium
from ...market.client import own_segment
from ...market.mediums.segment import SegmentMedium
from ...tensors.dtypes import array_dtype, tensor_over

__all__ = [
    "GatherReader",
    "RowReader",
    "SampleReader",
    "batch_reader",
    "collate_rows",
    "has_rows",
    "rows_of",
]

Array = np.ndarray[Any, Any]
#: Tensors by name; those with the codec TopK are `TopKLogits`.
Tensors = dict[str, Any]


class SampleReader:
    """Copies slots into tensors of their own.

    Args:
        config: what a slot holds.
        medium: the slots.
    """

    def __init__(self, config: BatchConfig, medium: Medium) -> None:
        self._config = config
        self._medium = medium
        plain = has_rows(config) and own_segment(medium) is not None and not config.has_codecs
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
            self._sample = self._config.decode(self._medium.read(slot_id))
            return
        memory = [np.empty(spec.nbytes, np.uint8) for spec in self._specs]
        self._copy(slot_id, memory)
        self._sample = {
            spec.name: tensor_over(spec.dtype, np.ndarray(spec.shape, array_dtype(spec.dtype), field))
            for spec, field in zip(self._specs, memory, strict=True)
        }

    def forget(self) -> None:
        """Nothing: a slot is read when its sample is wanted."""

    def take(self) -> Tensors:
        """Hand out the copy, `{name: dtype [*shape]}`; `read` must have been called since the last time."""
        sample, self._sample = self._sample, None
        assert sample is not None
        return sample


class GatherReader:
    """Fills batches by native calls, each of which copies all samples that are there.

    Args:
        config: what a slot holds; one for which `has_rows` is true.
        client: who has the slots, in a segment.
        n_rows: samples per batch.
    """

    def __init__(self, config: BatchConfig, client: Client, n_rows: int) -> None:
        self.n_rows = n_rows
        self._client = client
        self._gather = client.gather
        self._memory = _BatchMemory(config, n_rows)
        self._is_worth_it = not config.has_codecs and n_rows * config.nbytes() >= _WORTH_A_THREAD
        self._ahead: _core.Ahead | None = None

    def begin(self, product_id: str) -> None:
        """Copy what is there of the next batch while nobody waits for it, if there is much to copy."""
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

    def take(self) -> Tensors:
        """Hand out the batch, `{name: dtype [n_rows, *shape]}`; all rows must have been filled."""
        return self._memory.take()

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots: never, he gets copies."""
        return False


class RowReader:
    """Fills batches one row at a time, from a medium of any kind.

    Args:
        config: what a slot holds; one for which `has_rows` is true.
        client: who has the slots.
        n_rows: samples per batch.
    """

    def __init__(self, config: BatchConfig, client: Client, n_rows: int) -> None:
        self.n_rows = n_rows
        self._client = client
        self._memory = _BatchMemory(config, n_rows)
        self._copy = _copier(config, client.medium)

    def begin(self, product_id: str) -> None:
        """Nothing: samples are taken one by one."""

    def forget(self) -> None:
        """Nothing was begun."""

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

    def take(self) -> Tensors:
        """Hand out the batch, `{name: dtype [n_rows, *shape]}`; all rows must have been filled."""
        return self._memory.take()

    @property
    def is_starved(self) -> bool:
        """Whether nothing can come because the user holds all slots: never, he gets copies."""
        return False


def batch_reader(config: BatchConfig, client: Client, n_rows: int) -> GatherReader | RowReader:
    """Return the faster of the readers that can read this client's medium."""
    if own_segment(client.medium) is not None:
        return GatherReader(config, client, n_rows)
    return RowReader(config, client, n_rows)


def rows_of(batches: Iterable[Tensors], n_rows: int) -> Iterator[Any]:
    """Return an iterator over `n_rows` items per batch, of which `collate_rows` makes the batch again.

    For DataLoader, which asks for each sample by itself. Only the first item refers to the batch.
    """
    rest = (None,) * (n_rows - 1) + (_END,)

    def items(batch: Tensors) -> Iterator[_Whole | None]:
        # Unlike a tuple's iterator, this one forgets what it has handed out.
        return iter(deque((_Whole(batch), *rest)).popleft, _END)

    return chain.from_iterable(map(items, batches))


def collate_rows(samples: list[Any]) -> Any:
    """Return the batch of which `samples` are the items, `{name: dtype [n_rows, *shape]}`, without a copy.

    Anything else, such as samples, is stacked as torch's `default_collate` does it.
    """
    first = samples[0]
    return first.batch if type(first) is _Whole else default_collate(samples)


def has_rows(config: BatchConfig) -> bool:
    """Return whether samples are what `BatchConfig.decode` makes of them, and not what a subclass does."""
    return getattr(config.decode, "__func__", None) is BatchConfig.decode


class _Whole:
    """A batch on its way through DataLoader."""

    __slots__ = ("batch",)

    def __init__(self, batch: Tensors) -> None:
        self.batch = batch


class _BatchMemory:
    """Memory for one batch after the other."""

    def __init__(self, config: BatchConfig, n_rows: int) -> None:
        self._specs = list(config.specs)
        self._names = config.tensor_names
        self._fields = [
            _Field(part, config.get_offset(spec.name), n_rows)
            for spec in self._specs
            for part in spec._parts()
        ]
        #: How many tensors each spec becomes; None: one each.
        self._n_parts = [len(spec._parts()) for spec in self._specs] if config.has_codecs else None
        self._targets: list[tuple[Any, ...]] = []
        self._arrays: list[Array] | None = None

    def lend(self) -> list[tuple[Any, ...]]:
        """Return what `Client.gather` takes of each tensor of the batch to be filled."""
        if self._arrays is None:
            self._arrays, self._targets = [], []
            for field in self._fields:
                array, block = field.lend()
                self._arrays.append(array)
                if block.nbytes:
                    self._targets.append(
                        (field.offset, block) if field.native is None else (field.offset, block, field.native)
                    )
        return self._targets

    def row(self, index: int) -> list[Any]:
        """Return the bytes of each tensor in one row of the batch that was lent."""
        assert self._arrays is not None
        return [field.row(array, index) for field, array in zip(self._fields, self._arrays, strict=True)]

    def take(self) -> Tensors:
        """Hand out the batch that was lent; its memory is free as soon as whoever has it lets it go."""
        arrays, self._arrays, self._targets = self._arrays, None, []
        assert arrays is not None
        if self._n_parts is None:
            return {
                name: tensor_over(field.dtype, array)
                for name, field, array in zip(self._names, self._fields, arrays, strict=True)
            }
        rest = (tensor_over(field.dtype, array) for field, array in zip(self._fields, arrays, strict=True))
        return {
            spec.name: spec._assemble(list(islice(rest, n)))
            for spec, n in zip(self._specs, self._n_parts, strict=True)
        }


class _Field:
    """The memory of one tensor in the batches of one iterator, which is lent and comes back by itself.

    Each tensor has memory of its own, so that who keeps a batch's labels does not keep its images.

    Memory that is used again has its pages already, and pages cost more than the copy into them.
    """

    def __init__(self, part: Part, offset: int, n_rows: int) -> None:
        self.dtype = part.dtype
        self.offset = offset + part.offset
        self.native = part.native
        self._n_bytes = n_rows * part.decoded_bytes
        self._shape = (n_rows, *part.shape)
        self._dtype = np.dtype(array_dtype(part.dtype))
        # Appending drops the oldest; no lock, as memory may come back in any thread and at any allocation.
        self._idle: deque[Array] = deque(maxlen=_IDLE)
        self._lent: dict[int, weakref.ref[Array]] = {}

    def lend(self) -> tuple[Array, Array]:
        """Return an array and its bytes.

        Nobody else gets this memory until the array is garbage. A tensor on it keeps it, as do the tensor's
        views; the bytes do not.
        """
        try:
            block = self._idle.pop()
        except IndexError:
            block = _aligned(self._n_bytes)
        array: Array = np.ndarray(self._shape, self._dtype, block)
        key = id(block)
        self._lent[key] = weakref.ref(array, partial(_come_back, self._lent, key, self._idle, block))
        return array, block

    def row(self, array: Array, index: int) -> Any:
        """Return the bytes of one row of an array that was lent."""
        return array[index, ...].reshape(-1).view(np.uint8).data


def _aligned(n_bytes: int) -> Array:
    """Return memory that begins at a multiple of 64; from 4 MiB on, numpy asks the system for huge pages."""
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + n_bytes]


def _come_back(lent: dict[int, Any], key: int, idle: deque[Array], block: Array, _: object) -> None:
    """Take memory back whose array is garbage."""
    lent.pop(key, None)
    idle.append(block)


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


#: Comes after the items of a batch.
_END: Any = object()
#: Memory of so many batches is kept for the next ones: a student has one batch while the next is filled.
_IDLE = 2
#: Bytes of a batch that take longer to copy than a thread takes to start.
_WORTH_A_THREAD = 256 << 10
#: What vector instructions and torch's own allocator align to, bytes.
_ALIGNMENT = 64
