"""Specification of one tensor of a sample: name, shape, dtype, codec, and its conversion to bytes and back."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..codecs import Codec, Field, Part, as_codec, assemble, decode, encode, parts_of
from ..errors import ConfigError
from ..tensors import (
    ITEM_BYTES,
    array_dtype,
    checked_value,
    import_numpy,
    import_torch,
    on_host,
    tensor_over,
    torch_dtype,
)
from .ragged import LENGTH_BYTES, RaggedLayout

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    Buffer = bytes | bytearray | memoryview

__all__ = ["TensorSpec", "array_at", "check_length", "dtype_to_torch", "torch_dtype_to_str"]


def dtype_to_torch(dtype_str: str) -> torch.dtype:
    """Return the torch dtype of a name such as `"float32"`.

    Raises:
        ConfigError: the name is not a supported dtype; see `TensorSpec`.
        ImportError: torch is not installed.
    """
    _check_dtype(dtype_str)
    return torch_dtype(dtype_str)


def torch_dtype_to_str(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype, the inverse of `dtype_to_torch`.

    Raises:
        ConfigError: the dtype is not a supported one.
        ImportError: torch is not installed.
    """
    torch = import_torch()
    for name in ITEM_BYTES:
        if getattr(torch, name) is dtype:
            return name
    raise ConfigError(f"Unsupported torch dtype: {dtype}; supported are {', '.join(ITEM_BYTES)}")


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a sample.

    Args:
        name: key of the tensor in `BatchConfig.encode` and `BatchConfig.decode`.
        shape: sizes without a batch dimension; any sequence of whole numbers, kept as a tuple. If the tensor is ragged,
            the first one is the greatest length.
        dtype: one of float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int16,
            int8, uint8, bool.
        codec: how the tensor is encoded in a sample: a text such as "topk:64", or a codec of `softs_fast.codecs` or
            a registered one of the user's, kept as its text. None, or "exact": its elements are stored as they are.
        ragged: whether the first dimension varies: each sample has a length of its own, from 0 to shape[0], and only
            the elements that there are take bytes. Such a tensor has no codec.

    Raises:
        ConfigError: an empty name, a dimension that is negative or not a whole number, an unknown dtype or codec, a
            codec that does not take such a tensor, or a ragged tensor without a dimension or with a codec.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    # Of any type, as OmegaConf, which makes dicts of dataclasses, takes no unions.
    codec: Any = field(default=None, kw_only=True)
    ragged: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields, turn a list of sizes (YAML, Hydra) into a tuple, and a codec into its text."""
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"tensor name must be a non-empty string, got {self.name!r}")
        object.__setattr__(self, "shape", _checked_shape(self.name, self.shape))
        _check_dtype(self.dtype, f'tensor "{self.name}": ')
        codec = as_codec(self.codec)
        object.__setattr__(self, "codec", None if codec is None else str(codec))
        if not isinstance(self.ragged, bool):
            raise ConfigError(f'tensor "{self.name}": ragged must be True or False, got {self.ragged!r}')
        if self.ragged and not self.shape:
            raise ConfigError(
                f'tensor "{self.name}" is ragged and needs a first dimension, its greatest length'
            )
        if self.ragged and codec is not None:
            raise ConfigError(f'tensor "{self.name}" is ragged and cannot have the codec {self.codec}')
        self._parts()

    def __repr__(self) -> str:
        """Return the call that makes it; the codec only if there is one, and ragged only if it is."""
        rest = ("" if self.codec is None else f", codec={self.codec!r}") + self.ragged * ", ragged=True"
        return f"TensorSpec(name={self.name!r}, shape={self.shape!r}, dtype={self.dtype!r}{rest})"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a `torch.dtype`."""
        return dtype_to_torch(self.dtype)

    @property
    def numel(self) -> int:
        """Number of elements; the greatest one if it is ragged."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the encoded tensor in bytes; the greatest one, with its length, if it is ragged."""
        if self.codec is None:
            return self.numel * ITEM_BYTES[self.dtype] + self.ragged * LENGTH_BYTES
        return sum(part.n_bytes for part in self._parts())

    def encode(self, tensor: Tensor) -> bytes:
        """Return the elements of `tensor` in row-major order, native endian, encoded if there is a codec.

        If it is ragged, its length comes first, int64.

        Args:
            tensor: self.dtype [*self.shape], [length, *self.shape[1:]] if it is ragged, or another form that the codec
                takes; any strides; a tensor on a device is copied to the host first.

        Raises:
            ConfigError: another shape or dtype, or a value that the codec cannot hold.
            ImportError: torch is not installed.
        """
        if self.codec is not None:
            data = bytearray(self.nbytes)
            self._encode_into(tensor, (), [memoryview(data)], 0)
            return bytes(data)
        if self.ragged:
            data, layout = bytearray(self.nbytes), self._layout
            layout.encode_into({self.name: tensor}, memoryview(data))
            return bytes(data[: layout.bytes_of(layout.lengths(data))])
        return self._host_array(tensor).tobytes()

    def decode(self, data: Buffer) -> Any:
        """Return a new, writable tensor, self.dtype [*self.shape], that shares no memory with `data`.

        With the codec TopK, it is `TopKLogits`. If it is ragged, its shape is [length, *self.shape[1:]].

        Raises:
            ConfigError: `data` is not exactly `nbytes` long; longer, if it is ragged.
            WireError: `data` is not what `encode` returns.
            ImportError: torch is not installed.
        """
        if self.ragged:
            layout = self._layout
            return layout.decode(data, layout.checked_lengths(data))[self.name]
        check_length(data, self.nbytes)
        return self._tensor_at(data, 0)

    def _host_array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return an array over the tensor's memory, or over a copy of it if that is not on the host."""
        import_torch()
        return on_host(self._checked(tensor))

    def _checked(self, value: object, *, rows: tuple[int, ...] = ()) -> np.ndarray[Any, Any] | Tensor:
        """Return the bits of a value that has this dtype and the shape [*rows, *self.shape]."""
        return checked_value(self.name, self.dtype, (*rows, *self.shape), value)

    def _tensor_at(self, data: Buffer, offset: int) -> Any:
        """Copy this tensor out of `data`, from byte `offset` on: one copy, aligned whatever the offset is."""
        if self.codec is not None:
            return decode(self._coder, self._field, [data], offset, ())
        return tensor_over(self.dtype, array_at(self, data, offset).copy())

    def _assemble(self, tensors: Sequence[Tensor]) -> Any:
        """Return the batch's value for this tensor, given the tensors of its `_parts`."""
        return tensors[0] if self.codec is None else assemble(self._coder, self._field, tensors)

    def _encode_into(
        self, value: Any, rows: tuple[int, ...], outs: Sequence[memoryview], offset: int
    ) -> None:
        """Write this tensor into each sample; see `codecs.encodings.encode`."""
        encode(self._coder, self._field, value, rows, outs, offset)

    @property
    def _coder(self) -> Codec:
        """The codec, where there is one."""
        codec = as_codec(self.codec)
        assert codec is not None
        return codec

    @property
    def _field(self) -> Field:
        return Field(self.name, self.shape, self.dtype)

    @property
    def _layout(self) -> RaggedLayout:
        """Where this tensor is in a sample that has no other, if it is ragged."""
        return RaggedLayout([self], LENGTH_BYTES)

    def _parts(self) -> tuple[Part, ...]:
        """Return the tensors that represent this one in a batch: itself, or those of its codec."""
        if self.codec is None:
            return (Part(0, self.shape, self.dtype, None),)
        return parts_of(self._coder, self._field)


def check_length(data: Buffer, expected: int) -> None:
    """Check that `data` holds `expected` bytes.

    Raises:
        ConfigError: it does not.
    """
    length = memoryview(data).nbytes
    if length != expected:
        raise ConfigError(f"Data length {length} != expected {expected}")


def array_at(spec: TensorSpec, data: Buffer, offset: int) -> np.ndarray[Any, Any]:
    """Return a view of one tensor within an encoded sample; its length has been checked."""
    array: np.ndarray[Any, Any] = import_numpy().ndarray(spec.shape, array_dtype(spec.dtype), data, offset)
    return array


def _checked_shape(name: str, shape: Iterable[Any]) -> tuple[int, ...]:
    try:
        dims = tuple(shape)
    except TypeError:
        raise ConfigError(f'tensor "{name}": shape must be a sequence of ints, got {shape!r}') from None
    sizes = []
    for i, dim in enumerate(dims):
        try:
            size = operator.index(dim)
        except TypeError:
            size = -1
        if size < 0 or isinstance(dim, bool):
            raise ConfigError(
                f'tensor "{name}": dimension {i} of shape {dims} is {dim!r}; must be a whole number >= 0'
            )
        sizes.append(size)
    return tuple(sizes)


def _check_dtype(dtype: object, where: str = "") -> None:
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        remedy = "" if isinstance(dtype, str) else f"; give its name as a str, got {type(dtype).__name__}"
        raise ConfigError(f"{where}Unsupported dtype: {dtype}; supported are {', '.join(ITEM_BYTES)}{remedy}")
