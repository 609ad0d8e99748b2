"""Tensors of a sample of which the first dimension varies: where they are in its bytes, and their conversion.

A sample begins with the lengths, int64 each, in the order of the tensors; then it has the tensors of fixed shape, and
then the elements that there are of each ragged tensor, without padding. So it ends where the last one ends.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from .. import _core
from ..errors import ConfigError, WireError
from ..tensors import (
    ITEM_BYTES,
    RaggedTensor,
    array_dtype,
    checked_value,
    import_numpy,
    import_torch,
    is_tensor,
    on_host,
    tensor_over,
)

if TYPE_CHECKING:
    import numpy as np

    Buffer = bytes | bytearray | memoryview
    Array = np.ndarray[Any, Any]

__all__ = ["LENGTH_BYTES", "RaggedLayout"]

#: Bytes of a length in a sample.
LENGTH_BYTES = 8


class _Spec(Protocol):
    """What a layout needs to know of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


class RaggedLayout:
    """Where the ragged tensors of a sample are.

    Args:
        specs: Specs of the ragged tensors; the first dimension of `shape` is the greatest length.
        values_at: Offset of the elements of the first ragged tensor in a sample, bytes.

    Attributes:
        n_bytes: Size of the longest sample, bytes.
        lengths_bytes: Size of the lengths, bytes.
    """

    def __init__(self, specs: Sequence[_Spec], values_at: int) -> None:
        self.specs = list(specs)
        self.values_at = values_at
        self.n_bytes = values_at + sum(spec.shape[0] * _step_bytes(spec) for spec in specs)
        self.lengths_bytes = LENGTH_BYTES * len(self.specs)
        self._numbers = f"={len(self.specs)}q"
        self._sizes = tuple((spec.name, _step_bytes(spec), spec.shape[0]) for spec in self.specs)

    @property
    def native(self) -> _core.RaggedLayout:
        """The same for native code."""
        return _native(self.values_at, self._sizes)

    def lengths(self, data: Buffer) -> tuple[int, ...]:
        """Return the lengths that a sample states.

        Raises:
            ConfigError: `data` ends before they do.
            WireError: no sample has such a length.
        """
        if (n_bytes := memoryview(data).nbytes) < self.lengths_bytes:
            raise ConfigError(f"Data length {n_bytes} != expected, at least {self.lengths_bytes}")
        lengths = struct.unpack_from(self._numbers, data)
        for spec, length in zip(self.specs, lengths, strict=True):
            if not 0 <= length <= spec.shape[0]:
                raise WireError(f'tensor "{spec.name}" has length {length}, need 0 to {spec.shape[0]}')
        return lengths

    def checked_lengths(self, data: Buffer) -> tuple[int, ...]:
        """Return the lengths of a sample of which all bytes are there.

        Raises:
            ConfigError: `data` is longer than any sample.
            WireError: no sample has such a length, or `data` ends before its sample does.
        """
        n_bytes = memoryview(data).nbytes
        if n_bytes > self.n_bytes:
            raise ConfigError(f"Data length {n_bytes} != expected, at most {self.n_bytes}")
        lengths = self.lengths(data)
        if n_bytes < (end := self.bytes_of(lengths)):
            raise WireError(f"a sample of {end} bytes ends after {n_bytes}: tensors of lengths {lengths}")
        return lengths

    def starts(self, lengths: Sequence[int]) -> list[int]:
        """Return where the elements of each tensor begin, bytes, and where those of the last one end."""
        sizes = (length * step for (_, step, _), length in zip(self._sizes, lengths, strict=True))
        return list(accumulate(sizes, initial=self.values_at))

    def bytes_of(self, lengths: Sequence[int]) -> int:
        """Return the bytes of a sample of these lengths."""
        return self.starts(lengths)[-1]

    def encode_into(self, sample: Mapping[str, Any], memory: memoryview) -> None:
        """Write lengths and elements of one sample, [length, *rest] each.

        Raises:
            ConfigError: a tensor has another dtype, another rest or too many steps.
            ImportError: a tensor is of a dtype that only torch has, and torch is not installed.
        """
        rows = [_checked(spec, sample[spec.name]) for spec in self.specs]
        self.native.write([([len(row)], _bytes_of(row)) for row in rows], [memory])

    def encode_batch_into(self, batch: Mapping[str, Any], memories: Sequence[memoryview]) -> None:
        """As `encode_into`, for one sample per memory; see `BatchConfig.encode_batch_into`."""
        n = len(memories)
        self.native.write([_column(spec, batch[spec.name], n) for spec in self.specs], list(memories))

    def decode(self, data: Buffer, lengths: Sequence[int]) -> dict[str, Any]:
        """Return the tensors of a sample, dtype [length, *rest], each with memory of its own."""
        return {
            spec.name: tensor_over(spec.dtype, array.copy())
            for spec, array in zip(self.specs, self._arrays(data, lengths), strict=True)
        }

    def decode_batch(self, samples: Sequence[tuple[Buffer, Sequence[int]]]) -> dict[str, RaggedTensor]:
        """Return the tensors of samples and their lengths, end to end."""
        np, torch = import_numpy(), import_torch()
        columns = zip(*(self._arrays(data, lengths) for data, lengths in samples), strict=True)
        return {
            spec.name: RaggedTensor(
                tensor_over(spec.dtype, np.concatenate(column)),
                torch.tensor([lengths[i] for _, lengths in samples], device="cpu"),
            )
            for i, (spec, column) in enumerate(zip(self.specs, columns, strict=True))
        }

    def _arrays(self, data: Buffer, lengths: Sequence[int]) -> list[Array]:
        """Return the tensors of a sample on its memory; its lengths have been checked."""
        np, starts = import_numpy(), self.starts(lengths)
        return [
            np.ndarray((length, *spec.shape[1:]), array_dtype(spec.dtype), data, start)
            for spec, length, start in zip(self.specs, lengths, starts, strict=False)
        ]


def _step_bytes(spec: _Spec) -> int:
    return math.prod(spec.shape[1:]) * ITEM_BYTES[spec.dtype]


#: A tensor of some samples: how long each is, and its bytes, of all of them end to end or of each.
_Column: TypeAlias = "tuple[list[int], Array | list[Array]]"


@functools.lru_cache(256)
def _native(values_at: int, sizes: tuple[tuple[str, int, int], ...]) -> _core.RaggedLayout:
    return _core.RaggedLayout(values_at, sizes)


def _column(spec: _Spec, value: Any, n: int) -> _Column:
    """Return a tensor of n samples, of any form that `BatchConfig.encode_batch_into` takes."""
    if isinstance(value, RaggedTensor):
        column = _of_ragged(spec, value)
    elif is_tensor(value) and value.is_nested:
        column = _of_rows(spec, value.unbind())
    elif isinstance(value, list | tuple):
        column = _of_rows(spec, value)
    else:
        raise ConfigError(
            f'tensor "{spec.name}" is ragged: need a list of {n} tensors or arrays, a RaggedTensor or a nested '
            f"tensor, got {type(value).__name__}"
        )
    if len(column[0]) != n:
        raise ConfigError(f'tensor "{spec.name}" is of {len(column[0])} samples, need {n}')
    return column


def _of_ragged(spec: _Spec, value: RaggedTensor) -> _Column:
    lengths = value.lengths.tolist() if value.lengths.ndim == 1 else [-1]
    if any(not isinstance(length, int) or length < 0 for length in lengths):
        raise ConfigError(f'tensor "{spec.name}": lengths must be whole numbers from 0 on, [batch]')
    shape = (sum(lengths), *spec.shape[1:])
    return lengths, _bytes_of(on_host(checked_value(spec.name, spec.dtype, shape, value.values)))


def _of_rows(spec: _Spec, rows: Sequence[Any]) -> _Column:
    values = _end_to_end(spec, rows)
    if values is None:
        arrays = [_checked(spec, row) for row in rows]
        return list(map(len, arrays)), list(map(_bytes_of, arrays))
    return list(map(len, rows)), _bytes_of(values)


def _end_to_end(spec: _Spec, rows: Sequence[Any]) -> Array | None:
    """Return the values of small tensors as one array; None if they are large, or one of them does not fit.

    A call of numpy or torch costs more than copying a small tensor, and a copy from a device more than one on it, so
    there is one for all rows.
    """
    first = rows[0] if rows else None
    if not (is_tensor(first) or isinstance(first, import_numpy().ndarray)):
        return None
    kind, dtype, n_dims = type(first), first.dtype, len(spec.shape)
    if any(type(row) is not kind or row.dtype != dtype or row.ndim != n_dims for row in rows):
        return None
    is_on_host = not is_tensor(first) or first.is_cpu
    if is_on_host and sum(row.nbytes for row in rows) > len(rows) * _STAGED_BYTES:
        return None
    shape = (sum(map(len, rows)), *spec.shape[1:])
    try:
        values = import_torch().cat(list(rows)) if is_tensor(first) else import_numpy().concatenate(rows)
        return on_host(checked_value(spec.name, spec.dtype, shape, values))
    except (ConfigError, ValueError, RuntimeError):
        # Row by row the error says which one it is.
        return None


def _checked(spec: _Spec, value: Any) -> Array:
    """Return the bits of the tensor of one sample, [length, *rest], on the host."""
    shape: tuple[int, ...] = getattr(value, "shape", ())
    length = shape[0] if len(shape) else 0
    return on_host(checked_value(spec.name, spec.dtype, (length, *spec.shape[1:]), value))


def _bytes_of(array: Array) -> Array:
    """Return the bytes of an array of at least one dimension, contiguous."""
    np = import_numpy()
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    flat: Array = contiguous.view(np.uint8)
    return flat


#: Larger tensors are copied one by one, bytes: one copy less is worth more than one call.
_STAGED_BYTES = 16384
