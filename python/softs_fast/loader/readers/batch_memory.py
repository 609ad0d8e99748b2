"""Memory for batches that are copied out of slots; it is used again for later ones."""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from ...codecs.parts import Part
from ...configs import BatchConfig
from ...tensors.dtypes import array_dtype, tensor_over

__all__ = ["BatchMemory"]

Array = np.ndarray[Any, Any]
#: Tensors by name; those with the codec TopK are `TopKLogits`.
Tensors = dict[str, Any]


class BatchMemory:
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
        """Hand out the batch that was lent; its memory is free as soon as the caller releases it."""
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
    """The memory of one tensor in the batches of one iterator, which is lent and returns by itself.

    Each tensor has memory of its own, so that the labels of a batch can be kept without its images.

    Memory that is used again has its pages already, and pages cost more than the copy into them.
    """

    def __init__(self, part: Part, offset: int, n_rows: int) -> None:
        self.dtype = part.dtype
        self.offset = offset + part.offset
        self.native = part.native
        self._n_bytes = n_rows * part.decoded_bytes
        self._shape = (n_rows, *part.shape)
        self._dtype = np.dtype(array_dtype(part.dtype))
        # Appending drops the oldest; no lock, as memory may return in any thread and at any allocation.
        self._idle: deque[Array] = deque(maxlen=_IDLE)
        self._lent: dict[int, weakref.ref[Array]] = {}

    def lend(self) -> tuple[Array, Array]:
        """Return an array and its bytes.

        The memory is lent to no other batch until the array is garbage. A tensor on it keeps it, as do the tensor's
        views; the bytes do not.
        """
        try:
            block = self._idle.pop()
        except IndexError:
            block = _aligned(self._n_bytes)
        array: Array = np.ndarray(self._shape, self._dtype, block)
        key = id(block)
        self._lent[key] = weakref.ref(array, partial(_take_back, self._lent, key, self._idle, block))
        return array, block

    def row(self, array: Array, index: int) -> Any:
        """Return the bytes of one row of an array that was lent."""
        return array[index, ...].reshape(-1).view(np.uint8).data


def _aligned(n_bytes: int) -> Array:
    """Return memory that begins at a multiple of 64; from 4 MiB on, numpy asks the system for huge pages."""
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + n_bytes]


def _take_back(lent: dict[int, Any], key: int, idle: deque[Array], block: Array, _: object) -> None:
    """Take back the memory of an array that is garbage."""
    lent.pop(key, None)
    idle.append(block)


#: Memory of so many batches is kept for the next ones: a student has one batch while the next is filled.
_IDLE = 2
#: What vector instructions and torch's own allocator align to, bytes.
_ALIGNMENT = 64
