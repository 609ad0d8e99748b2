"""Memory for batches that are copied out of slots; it is used again for later ones."""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from ...codecs import CustomCodec, as_codec
from ...codecs.parts import Part
from ...configs import BatchConfig
from ...tensors.dtypes import array_dtype, tensor_over, torch_dtype
from .pinning import empty_pinned, pinned

__all__ = ["BatchMemory"]

Array = np.ndarray[Any, Any]
#: Tensors by name; those with the codec TopK are `TopKLogits`.
Tensors = dict[str, Any]


class BatchMemory:
    """Memory for one batch after the other.

    Args:
        config: what a sample holds.
        n_rows: samples per batch.
        pins: take pinned memory, which torch uses again when no device reads it any more.
    """

    def __init__(self, config: BatchConfig, n_rows: int, pins: bool) -> None:
        self._specs = list(config.specs)
        self._names = config.tensor_names
        self._fields = [
            (_PinnedField if pins else _Field)(part, config.get_offset(spec.name), n_rows)
            for spec in self._specs
            for part in spec._parts()
        ]
        #: How many tensors each spec becomes; None: one each.
        self._n_parts = [len(spec._parts()) for spec in self._specs] if config.has_codecs else None
        #: Whether decoding ends in memory of a user's codec, which is not pinned.
        self._pins_again = pins and any(isinstance(as_codec(spec.codec), CustomCodec) for spec in self._specs)
        self._targets: list[tuple[Any, ...]] = []
        self._lent: list[tuple[torch.Tensor, Array]] | None = None

    def lend(self) -> list[tuple[Any, ...]]:
        """Return what `Client.gather` takes of each tensor of the batch to be filled."""
        if self._lent is None:
            self._lent, self._targets = [], []
            for field in self._fields:
                tensor, block = field.lend()
                self._lent.append((tensor, block))
                if block.nbytes:
                    self._targets.append(
                        (field.offset, block) if field.native is None else (field.offset, block, field.native)
                    )
        return self._targets

    def row(self, index: int) -> list[Any]:
        """Return the bytes of each tensor in one row of the batch that was lent."""
        assert self._lent is not None
        return [
            block[index * field.row_bytes : (index + 1) * field.row_bytes].data
            for field, (_, block) in zip(self._fields, self._lent, strict=True)
        ]

    def take(self) -> Tensors:
        """Hand out the batch that was lent; its memory is free as soon as the caller releases it."""
        lent, self._lent, self._targets = self._lent, None, []
        assert lent is not None
        if self._n_parts is None:
            return {name: tensor for name, (tensor, _) in zip(self._names, lent, strict=True)}
        rest = (tensor for tensor, _ in lent)
        batch = {
            spec.name: spec._assemble(list(islice(rest, n)))
            for spec, n in zip(self._specs, self._n_parts, strict=True)
        }
        return pinned(batch) if self._pins_again else batch


class _Field:
    """The memory of one tensor in the batches of one iterator, which is lent and returns by itself.

    Each tensor has memory of its own, so that the labels of a batch can be kept without its images.

    Memory that is used again has its pages already, and pages cost more than the copy into them.
    """

    def __init__(self, part: Part, offset: int, n_rows: int) -> None:
        self._name = part.dtype
        self.offset = offset + part.offset
        self.native = part.native
        self.row_bytes = part.decoded_bytes
        self._n_bytes = n_rows * part.decoded_bytes
        self._shape = (n_rows, *part.shape)
        self._dtype = np.dtype(array_dtype(part.dtype))
        # Appending drops the oldest; no lock, as memory may return in any thread and at any allocation.
        self._idle: deque[Array] = deque(maxlen=_IDLE)
        self._lent: dict[int, weakref.ref[Array]] = {}

    def lend(self) -> tuple[torch.Tensor, Array]:
        """Return a tensor and its bytes.

        The memory is lent to no other batch until the last view of the tensor is garbage; the bytes do not count.
        """
        try:
            block = self._idle.pop()
        except IndexError:
            block = _aligned(self._n_bytes)
        array: Array = np.ndarray(self._shape, self._dtype, block)
        key = id(block)
        self._lent[key] = weakref.ref(array, partial(_take_back, self._lent, key, self._idle, block))
        return tensor_over(self._name, array), block


class _PinnedField:
    """As `_Field`, in pinned memory of torch."""

    def __init__(self, part: Part, offset: int, n_rows: int) -> None:
        self.offset = offset + part.offset
        self.native = part.native
        self.row_bytes = part.decoded_bytes
        self._shape = (n_rows, *part.shape)
        self._dtype = torch_dtype(part.dtype)

    def lend(self) -> tuple[torch.Tensor, Array]:
        """As `_Field.lend`."""
        tensor = empty_pinned(self._shape, self._dtype)
        return tensor, tensor.reshape(-1).view(torch.uint8).numpy()


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
