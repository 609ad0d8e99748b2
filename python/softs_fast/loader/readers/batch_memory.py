"""Memory for batches that are copied out of slots; it is used again for later ones."""

from __future__ import annotations

import math
import weakref
from collections import deque
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from ...codecs import CustomCodec, Part, as_codec
from ...configs import BatchConfig, RaggedLayout
from ...tensors import ITEM_BYTES, RaggedTensor, array_dtype, tensor_over, torch_dtype
from .items import empty_pinned, pinned

__all__ = ["BatchMemory"]

Array = np.ndarray[Any, Any]
#: Tensors by name; those with the codec TopK are `TopKLogits`, ragged ones `RaggedTensor`s.
Tensors = dict[str, Any]


class BatchMemory:
    """Memory for one batch after the other.

    Args:
        config: Config of the tensors that a sample holds.
        n_rows: Samples per batch.
        pins: Whether to take pinned memory, which torch uses again when no device reads it any more.
        n_held: Batches that the caller has at once; memory of one more is kept, as the next one is filled meanwhile.
    """

    def __init__(self, config: BatchConfig, n_rows: int, pins: bool, n_held: int = 1) -> None:
        self._n_rows = n_rows
        self._names = config.tensor_names
        self._specs = [spec for spec in config.specs if not spec.ragged]
        self._fields: list[_Field | _PinnedField] = [
            _PinnedField(part, config.get_offset(spec.name), n_rows)
            if pins
            else _Field(part, config.get_offset(spec.name), n_rows, n_held)
            for spec in self._specs
            for part in spec._parts()
        ]
        self._ragged = None if config.ragged is None else _RaggedFields(config.ragged, n_rows, pins, n_held)
        #: How many tensors each spec becomes; None: one each.
        is_plain = not config.has_codecs and config.ragged is None
        self._n_parts = None if is_plain else [len(spec._parts()) for spec in self._specs]
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
            if self._ragged is not None:
                self._targets.append(self._ragged.lend())
        return self._targets

    def row(self, index: int) -> list[Any]:
        """Return the bytes of each tensor in one row of the batch that was lent."""
        assert self._lent is not None
        return [
            block[index * field.row_bytes : (index + 1) * field.row_bytes].data
            for field, (_, block) in zip(self._fields, self._lent, strict=True)
        ]

    def blocks(self) -> list[Array]:
        """Return the memory of each tensor of the batch that was lent, uint8 [n_rows, bytes of a row]."""
        assert self._lent is not None
        return [block.reshape(self._n_rows, -1) for _, block in self._lent]

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
        if self._pins_again:
            batch = pinned(batch)
        if self._ragged is None:
            return batch
        batch |= self._ragged.take()
        return {name: batch[name] for name in self._names}


class _Lender:
    """Memory that is lent to tensors and returns by itself.

    Memory that is used again has its pages already, and pages cost more than the copy into them.

    Args:
        n_bytes: Size of a piece of the memory.
        dtype: Dtype of the tensors.
        n_held: As for `BatchMemory`.
    """

    def __init__(self, n_bytes: int, dtype: str, n_held: int) -> None:
        self._n_bytes = n_bytes
        self._name = dtype
        self._dtype = np.dtype(array_dtype(dtype))
        # Appending drops the oldest; no lock, as memory may return in any thread and at any allocation.
        self._idle: deque[Array] = deque(maxlen=n_held + 1)
        self._lent: dict[int, weakref.ref[Array]] = {}

    def piece(self) -> Array:
        """Return memory that is lent to no batch, uint8 [n_bytes]."""
        try:
            return self._idle.pop()
        except IndexError:
            return _aligned(self._n_bytes)

    def tensor_over(self, block: Array, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor on the first bytes of a piece.

        The memory is lent to no other batch until the last view of the tensor is garbage; the bytes do not count.
        """
        array: Array = np.ndarray(shape, self._dtype, block)
        key = id(block)
        self._lent[key] = weakref.ref(array, partial(_take_back, self._lent, key, self._idle, block))
        return tensor_over(self._name, array)


class _Field(_Lender):
    """The memory of one tensor in the batches of one iterator.

    Each tensor has memory of its own, so that the labels of a batch can be kept without its images.
    """

    def __init__(self, part: Part, offset: int, n_rows: int, n_held: int) -> None:
        super().__init__(n_rows * part.decoded_bytes, part.dtype, n_held)
        self.offset = offset + part.offset
        self.native = part.native
        self.row_bytes = part.decoded_bytes
        self._shape = (n_rows, *part.shape)

    def lend(self) -> tuple[torch.Tensor, Array]:
        """Return a tensor and its bytes; see `_Lender.tensor_over`."""
        block = self.piece()
        return self.tensor_over(block, self._shape), block


class _PinnedField:
    """As `_Field`, in pinned memory of torch."""

    def __init__(self, part: Part, offset: int, n_rows: int) -> None:
        self.offset = offset + part.offset
        self.native = part.native
        self.row_bytes = part.decoded_bytes
        self._shape = (n_rows, *part.shape)
        self._dtype = torch_dtype(part.dtype)

    def lend(self) -> tuple[torch.Tensor, Array]:
        """Return a tensor and its bytes, as `_Field.lend`."""
        tensor = empty_pinned(self._shape, self._dtype)
        return tensor, tensor.reshape(-1).view(torch.uint8).numpy()


class _RaggedFields:
    """The memory of the ragged tensors in the batches of one iterator.

    There is room for the greatest length of each row, of which only what a batch fills ever gets pages. For pinned
    batches it is copied once more: memory that is pinned has all of its pages.
    """

    def __init__(self, layout: RaggedLayout, n_rows: int, pins: bool, n_held: int) -> None:
        self._specs = layout.specs
        self._native = layout.native
        self._n_rows = n_rows
        self._pins = pins
        self._memories = [
            _Lender(n_rows * math.prod(spec.shape) * ITEM_BYTES[spec.dtype], spec.dtype, n_held)
            for spec in self._specs
        ]
        self._blocks: list[Array] = []
        self._offsets: Array = np.empty((0, 0), np.int64)

    def lend(self) -> tuple[Any, ...]:
        """Return what `Client.gather` takes of all these tensors."""
        self._offsets = np.empty((len(self._specs), self._n_rows + 1), np.int64)
        self._blocks = [memory.piece() for memory in self._memories]
        return self._native, self._offsets, self._blocks

    def take(self) -> Tensors:
        """Hand out the tensors of the batch that was lent, each with memory of exactly its size."""
        batch: Tensors = {}
        for i, (spec, memory, block) in enumerate(
            zip(self._specs, self._memories, self._blocks, strict=True)
        ):
            offsets = self._offsets[i]
            values = memory.tensor_over(block, (int(offsets[-1]), *spec.shape[1:]))
            ragged = RaggedTensor(values, torch.from_numpy(np.diff(offsets)))
            batch[spec.name] = ragged.pin_memory() if self._pins else ragged
        self._blocks = []
        return batch


def _aligned(n_bytes: int) -> Array:
    """Return memory that begins at a multiple of 64; from 4 MiB on, numpy asks the system for huge pages."""
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + n_bytes]


def _take_back(lent: dict[int, Any], key: int, idle: deque[Array], block: Array, _: object) -> None:
    """Take back the memory of an array that is garbage."""
    lent.pop(key, None)
    idle.append(block)


#: What vector instructions and torch's own allocator align to, bytes.
_ALIGNMENT = 64
