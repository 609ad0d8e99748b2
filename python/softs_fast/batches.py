"""From a slot to tensors in one copy: rows of a batch in memory that batches use in turn, or single samples."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from .configs import BatchConfig, TensorSpec, array_dtype, check_length, tensor_over
from .market import Medium
from .market.mediums._segment import SegmentMedium

__all__ = ["Row", "RowReader", "SampleReader", "collate_rows", "has_rows"]

Array = np.ndarray[Any, Any]


class SampleReader:
    """Copies slots into tensors of their own.

    Args:
        config: what a slot holds.
        medium: the slots.
    """

    def __init__(self, config: BatchConfig, medium: Medium) -> None:
        self._config = config
        self._medium = medium
        self._specs = list(config.specs) if has_rows(config) and _is_segment(medium) else None
        self._copy = _copier(config, medium) if self._specs is not None else None
        self._sample: dict[str, torch.Tensor] | None = None

    def read(self, slot_id: int) -> None:
        """Copy a slot; the copy replaces one that `take` has not handed out.

        Raises:
            ConfigError: the medium gave another number of bytes than a sample has.
            SegmentError: there is no such slot, or the medium is closed.
        """
        if self._specs is None or self._copy is None:
            self._sample = self._config.decode(self._medium.read(slot_id))
            return
        memory = [np.empty(spec.nbytes, np.uint8) for spec in self._specs]
        self._copy(slot_id, memory)
        self._sample = {
            spec.name: tensor_over(spec, np.ndarray(spec.shape, array_dtype(spec), field))
            for spec, field in zip(self._specs, memory, strict=True)
        }

    def take(self) -> dict[str, torch.Tensor]:
        """Hand out the copy, `{name: dtype [*shape]}`; `read` must have been called since the last time."""
        sample, self._sample = self._sample, None
        assert sample is not None
        return sample


class RowReader:
    """Copies slots into the rows of a batch, one batch after the other.

    Args:
        config: what a slot holds; one for which `has_rows` is true.
        medium: the slots.
        n_rows: samples per batch.
    """

    def __init__(self, config: BatchConfig, medium: Medium, n_rows: int) -> None:
        self._n_rows = n_rows
        self._fields = [_Field(spec, n_rows) for spec in config.specs]
        self._copy = _copier(config, medium)
        self._batch: _Batch | None = None
        self._n_taken = 0

    def read(self, slot_id: int) -> None:
        """Copy a slot into the next row; the copy replaces one that `take` has not handed out.

        Raises:
            ConfigError: the medium gave another number of bytes than a sample has.
            SegmentError: there is no such slot, or the medium is closed.
        """
        if self._batch is None:
            self._batch = _Batch(self._fields)
        self._copy(slot_id, self._batch.targets[self._n_taken])

    def take(self) -> Row:
        """Hand out the row that was read; `read` must have been called since the last time."""
        batch, index = self._batch, self._n_taken
        assert batch is not None
        self._n_taken += 1
        if self._n_taken == self._n_rows:
            # Whoever has the rows has the batch now; its memory is free as soon as they let it go.
            self._batch, self._n_taken = None, 0
        return Row(batch, index)


class Row(Mapping[str, torch.Tensor]):
    """One sample in a batch that is being filled: what the dataset yields to `collate_rows`.

    As a mapping, it gives copies.
    """

    __slots__ = ("batch", "index")

    def __init__(self, batch: _Batch, index: int) -> None:
        self.batch = batch
        self.index = index

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a copy of one tensor, dtype [*shape]; KeyError if there is none of this name."""
        spec, array = self.batch.arrays[name]
        return tensor_over(spec, array[self.index, ...].copy())

    def __iter__(self) -> Iterator[str]:
        return iter(self.batch.arrays)

    def __len__(self) -> int:
        return len(self.batch.arrays)


def collate_rows(samples: list[Any]) -> Any:
    """Return the batch of which `samples` are the rows, `{name: dtype [n_rows, *shape]}`, without a copy.

    Anything else, such as samples that are no rows or not all rows of one batch, is stacked as torch's
    `default_collate` does it.
    """
    first = samples[0]
    if isinstance(first, Row):
        batch = first.batch
        if len(samples) == len(batch.targets) and all(
            isinstance(row, Row) and row.batch is batch and row.index == i for i, row in enumerate(samples)
        ):
            return {name: tensor_over(spec, array) for name, (spec, array) in batch.arrays.items()}
    return default_collate([dict(sample) if isinstance(sample, Row) else sample for sample in samples])


def has_rows(config: BatchConfig) -> bool:
    """Return whether samples are what `BatchConfig.decode` makes of them, and not what a subclass does."""
    return getattr(config.decode, "__func__", None) is BatchConfig.decode


class _Batch:
    """Memory for the rows of one batch.

    Attributes:
        arrays: spec and array_dtype(spec) [n_rows, *shape], by name.
        targets: for each row, the bytes of each of its tensors.
    """

    __slots__ = ("arrays", "targets")

    def __init__(self, fields: list[_Field]) -> None:
        self.arrays: dict[str, tuple[TensorSpec, Array]] = {}
        rows = []
        for field in fields:
            array, field_rows = field.lend()
            self.arrays[field.spec.name] = (field.spec, array)
            rows.append(field_rows)
        self.targets = list(zip(*rows, strict=True))


class _Field:
    """The memory of one tensor in the batches of one iterator, which is lent and comes back by itself.

    Each tensor has memory of its own, so that who keeps a batch's labels does not keep its images.

    Memory that is used again has its pages already, and pages cost more than the copy into them.
    """

    def __init__(self, spec: TensorSpec, n_rows: int) -> None:
        self.spec = spec
        self._shape = (n_rows, *spec.shape)
        self._dtype = np.dtype(array_dtype(spec))
        self._n_rows = n_rows
        # Appending drops the oldest; no lock, as memory may come back in any thread and at any allocation.
        self._idle: deque[_Memory] = deque(maxlen=_IDLE)
        self._lent: dict[int, weakref.ref[Array]] = {}

    def lend(self) -> tuple[Array, list[memoryview]]:
        """Return an array and the bytes of its rows.

        Nobody else gets this memory until the array is garbage. A tensor on it keeps it, as do the tensor's
        views.
        """
        try:
            memory = self._idle.pop()
        except IndexError:
            memory = _Memory(self._n_rows, self.spec.nbytes)
        array: Array = np.ndarray(self._shape, self._dtype, memory.block)
        key = id(memory)
        self._lent[key] = weakref.ref(array, partial(_come_back, self._lent, key, self._idle, memory))
        return array, memory.rows


class _Memory:
    """Bytes for one tensor in each of the rows of a batch.

    Attributes:
        block: all of them, at a multiple of 64.
        rows: those of each row.
    """

    __slots__ = ("block", "rows")

    def __init__(self, n_rows: int, row_bytes: int) -> None:
        n_bytes = n_rows * row_bytes
        # From 4 MiB on, numpy asks the system for huge pages.
        memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
        start = -memory.__array_interface__["data"][0] % _ALIGNMENT
        self.block: Array = memory[start : start + n_bytes]
        view = self.block.data
        self.rows = [view[i * row_bytes : (i + 1) * row_bytes] for i in range(n_rows)]


def _come_back(lent: dict[int, Any], key: int, idle: deque[_Memory], memory: _Memory, _: object) -> None:
    """Take memory back whose array is garbage."""
    lent.pop(key, None)
    idle.append(memory)


def _is_segment(medium: Medium) -> bool:
    """Return whether the medium's own `read_into` reads what its `read` does."""
    return isinstance(medium, SegmentMedium) and getattr(medium.read, "__func__", None) is SegmentMedium.read


def _copier(config: BatchConfig, medium: Medium) -> Callable[[int, Sequence[Any]], None]:
    """Return a function that copies a slot to the bytes of its tensors, given in the order of `specs`."""
    starts = [config.get_offset(spec.name) for spec in config.specs]
    n_bytes = config.nbytes()

    if isinstance(medium, SegmentMedium) and _is_segment(medium):
        read_into = medium.read_into

        def copy_parts(slot_id: int, targets: Sequence[Any]) -> None:
            for start, target in zip(starts, targets, strict=True):
                read_into(slot_id, target, start)

        return copy_parts

    def copy_whole(slot_id: int, targets: Sequence[Any]) -> None:
        data = medium.read(slot_id)
        check_length(data, n_bytes)
        view = memoryview(data).cast("B")
        for start, target in zip(starts, targets, strict=True):
            target[:] = view[start : start + len(target)]

    return copy_whole


#: Memory of so many batches is kept for the next ones: a student has one batch while the next is filled.
_IDLE = 2
#: What vector instructions and torch's own allocator align to, bytes.
_ALIGNMENT = 64
