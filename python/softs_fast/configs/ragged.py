"""Tensors of a sample of which the first dimension varies: where they are in its bytes, and their conversion.

A sample begins with the lengths, int64 each, in the order of the tensors; then it has the tensors of fixed shape, and
then the elements that there are of each ragged tensor, without padding. So it ends where the last one ends.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

from .. import _core
from ..errors import ConfigError, WireError
from ..tensors.dtypes import (
    ITEM_BYTES,
    array_dtype,
    checked_value,
    import_numpy,
    import_torch,
    is_tensor,
    on_host,
    tensor_over,
)
from ..tensors.ragged import RaggedTensor

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
        specs: the tensors; the first dimension of `shape` is the greatest length.
        values_at: where the elements of the first one begin, bytes.

    Attributes:
        n_bytes: of the longest sample.
        lengths_bytes: bytes of the lengths.
    """

    def __init__(self, specs: Sequence[_Spec], values_at: int) -> None:
        self.specs = list(specs)
        self.values_at = values_at
        self.n_bytes = values_at + sum(spec.shape[0] * _step_bytes(spec) for spec in specs)
        self.lengths_bytes = LENGTH_BYTES * len(self.specs)
        self._numbers = f"={len(self.specs)}q"

    def native(self) -> _core.RaggedLayout:
        """The same for native code."""
        return _core.RaggedLayout(
            self.values_at, [(spec.name, _step_bytes(spec), spec.shape[0]) for spec in self.specs]
        )

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
        if n_bytes < (end := self.end(lengths)):
            raise WireError(f"a sample of {end} bytes ends after {n_bytes}: tensors of lengths {lengths}")
        return lengths

    def starts(self, lengths: Sequence[int]) -> list[int]:
        """Return where the elements of each tensor begin, bytes, and where those of the last one end."""
        sizes = (length * _step_bytes(spec) for spec, length in zip(self.specs, lengths, strict=True))
        return list(accumulate(sizes, initial=self.values_at))

    def end(self, lengths: Sequence[int]) -> int:
        """Return the bytes of a sample of these lengths."""
        return self.starts(lengths)[-1]

    def encode_into(self, sample: Mapping[str, Any], memory: memoryview) -> None:
        """Write lengths and elements of one sample, [length, *rest] each.

        Raises:
            ConfigError: a tensor has another dtype, another rest or too many steps.
            ImportError: a tensor is of a dtype that only torch has, and torch is not installed.
        """
        self._store([[_checked(spec, sample[spec.name])] for spec in self.specs], [memory])

    def encode_batch_into(self, batch: Mapping[str, Any], memories: Sequence[memoryview]) -> None:
        """As `encode_into`, for one sample per memory; see `BatchConfig.encode_batch_into`."""
        n = len(memories)
        self._store([_rows(spec, batch[spec.name], n) for spec in self.specs], memories)

    def _store(self, columns: list[list[Array]], memories: Sequence[memoryview]) -> None:
        """Write the rows of each tensor, as many as there are memories."""
        np = import_numpy()
        if not memories:
            return
        lengths = np.array([[len(row) for row in rows] for rows in columns], np.int64).T
        _core.copy_rows(np.ascontiguousarray(lengths), list(memories), 0)
        steps = np.array([_step_bytes(spec) for spec in self.specs])
        ends = self.values_at + (lengths * steps).cumsum(axis=1)
        starts = ends - lengths * steps
        for i, rows in enumerate(columns):
            _core.copy_parts(list(map(_bytes_of, rows)), list(memories), starts[:, i].tolist())

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
                torch.tensor([lengths[i] for _, lengths in samples]),
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


def _rows(spec: _Spec, value: Any, n: int) -> list[Array]:
    """Return the tensors of n samples, in any form that `BatchConfig.encode_batch_into` takes."""
    if isinstance(value, RaggedTensor):
        lengths = value.lengths.tolist() if value.lengths.ndim == 1 else [-1]
        if any(not isinstance(length, int) or length < 0 for length in lengths):
            raise ConfigError(f'tensor "{spec.name}": lengths must be whole numbers from 0 on, [batch]')
        shape = (sum(lengths), *spec.shape[1:])
        values = on_host(checked_value(spec.name, spec.dtype, shape, value.values))
        ends = list(accumulate(lengths, initial=0))
        rows = [_checked_length(spec, values[i:j]) for i, j in pairwise(ends)]
    elif is_tensor(value) and value.is_nested:
        rows = [_checked(spec, row) for row in value.unbind()]
    elif isinstance(value, list | tuple):
        rows = [_checked(spec, row) for row in value]
    else:
        raise ConfigError(
            f'tensor "{spec.name}" is ragged: need a list of {n} tensors or arrays, a RaggedTensor or a nested '
            f"tensor, got {type(value).__name__}"
        )
    if len(rows) != n:
        raise ConfigError(f'tensor "{spec.name}" is of {len(rows)} samples, need {n}')
    return rows


def _checked(spec: _Spec, value: Any) -> Array:
    """Return the bits of the tensor of one sample, [length, *rest], on the host."""
    length = next(iter(getattr(value, "shape", ())), 0)
    value = checked_value(spec.name, spec.dtype, (length, *spec.shape[1:]), value)
    return on_host(_checked_length(spec, value))


def _checked_length(spec: _Spec, value: Any) -> Any:
    if len(value) > spec.shape[0]:
        raise ConfigError(f'tensor "{spec.name}" has length {len(value)}, need 0 to {spec.shape[0]}')
    return value


def _bytes_of(array: Array) -> Array:
    flat: Array = import_numpy().ascontiguousarray(array).reshape(-1).view("uint8")
    return flat
