"""The encodings: their sizes in bytes, and the tensors that they accept."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _core
from ..errors import ConfigError
from ..tensors import is_tensor, torch_dtype
from .custom import CustomCodec
from .logits import TopKLogits
from .parts import Field, Part, host_bytes, read, write

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Cast", "Codec", "Int8", "TopK", "assemble", "decode", "encode", "parts_of"]


@dataclass(frozen=True)
class Cast:
    """Floats stored in another dtype and decoded to their own; `"cast:bfloat16"` for short.

    Rounds to nearest, ties to even. Finite values stay finite: those beyond the largest number of `dtype` become that
    number. NaN stays NaN; an infinity stays one, or becomes 448 in float8_e4m3fn, which has none. A tensor that is
    of `dtype` already, for example because a GPU cast it, is stored as it is.

    Args:
        dtype: bfloat16, float16, float8_e4m3fn or float8_e5m2. The tensor has more bytes per element: it is of
            float64, float32 or, for a float8, of float16 or bfloat16.

    Raises:
        ConfigError: another dtype.
    """

    dtype: str

    def __post_init__(self) -> None:
        """Check the field."""
        if self.dtype not in _STORED:
            raise ConfigError(f"cast: dtype must be one of {', '.join(_STORED)}, got {self.dtype!r}")

    def __str__(self) -> str:
        """Return what `as_codec` takes."""
        return f"cast:{self.dtype}"

    def _parts(self, field: Field) -> tuple[Part, ...]:
        return (Part(0, field.shape, field.dtype, _core.Codec.cast(field.dtype, self.dtype)),)

    def _write(
        self, field: Field, value: Any, rows: tuple[int, ...], outs: Sequence[memoryview], offset: int
    ) -> None:
        native = parts_of(self, field)[0].native
        if _has_dtype(value, self.dtype):
            field, native = field._replace(dtype=self.dtype), None
        write(field.name, native, host_bytes(field, value, rows), outs, offset)

    def _assemble(self, field: Field, tensors: Sequence[Tensor]) -> Any:
        return tensors[0]


@dataclass(frozen=True)
class Int8:
    """Blocks of whole numbers from -127 to 127 with a scale each; `"int8:128"` for short.

    Blocks go along the flattened tensor of one sample. A scale is the largest absolute value of its block / 127, and
    each decoded element is within half a scale of the original. NaN, infinities and values that a scale cannot
    express are refused.

    Args:
        block: elements per block, 8 to 4096.
        scale: dtype of the scales: float32, or float16, which takes absolute values up to 8.3 million.

    Raises:
        ConfigError: a block or a scale that is none of these.
    """

    block: int = 128
    scale: str = "float32"

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "block", _whole("int8: block", self.block, 8, 4096))
        if self.scale not in ("float32", "float16"):
            raise ConfigError(f"int8: scale must be float32 or float16, got {self.scale!r}")

    def __str__(self) -> str:
        """Return what `as_codec` takes."""
        return f"int8:{self.block}" + ("" if self.scale == "float32" else f":{self.scale}")

    def _parts(self, field: Field) -> tuple[Part, ...]:
        return (Part(0, field.shape, field.dtype, _core.Codec.int8(field.dtype, self.block, self.scale)),)

    def _write(
        self, field: Field, value: Any, rows: tuple[int, ...], outs: Sequence[memoryview], offset: int
    ) -> None:
        native = parts_of(self, field)[0].native
        write(field.name, native, host_bytes(field, value, rows), outs, offset)

    def _assemble(self, field: Field, tensors: Sequence[Tensor]) -> Any:
        return tensors[0]


@dataclass(frozen=True)
class TopK:
    """The k largest logits of each row, their indices, and the log-sum-exp of the row; `"topk:64"` for short.

    A row is the last axis. Of equal values the first in the row comes first; NaN comes before all numbers. Decoding
    gives `TopKLogits`, for which `topk_kl` is the loss. `TopKLogits` are accepted in place of logits and stored as
    they are; `topk_logits` computes them on the device of the logits.

    Args:
        k: values per row, at least 1.

    Raises:
        ConfigError: k is no whole number, or less than 1.
    """

    k: int

    def __post_init__(self) -> None:
        """Check the field."""
        object.__setattr__(self, "k", _whole("topk: k", self.k, 1, _MAX_ROW))

    def __str__(self) -> str:
        """Return what `as_codec` takes."""
        return f"topk:{self.k}"

    def _parts(self, field: Field) -> tuple[Part, ...]:
        if not field.shape or field.shape[-1] > _MAX_ROW:
            raise ConfigError(
                f"topk needs a last axis of {self.k} to {_MAX_ROW} logits, have shape {field.shape}"
            )
        *lead, row_len = field.shape
        _topk(field.dtype, row_len, self.k)  # checks them
        values = Part(0, (*lead, self.k), field.dtype, None)
        indices = Part(values.n_bytes, (*lead, self.k), "int64", _core.Codec.indices(row_len))
        return values, indices, Part(indices.offset + indices.n_bytes, tuple(lead), "float32", None)

    def _write(
        self, field: Field, value: Any, rows: tuple[int, ...], outs: Sequence[memoryview], offset: int
    ) -> None:
        parts = parts_of(self, field)
        if not isinstance(value, TopKLogits):
            native = _topk(field.dtype, field.shape[-1], self.k)
            write(field.name, native, host_bytes(field, value, rows), outs, offset)
            return
        for part, key, of in zip(parts, TopKLogits._fields, value, strict=True):
            inner = Field(f"{field.name}.{key}", part.shape, part.dtype)
            write(inner.name, part.native, host_bytes(inner, of, rows), outs, offset + part.offset)

    def _assemble(self, field: Field, tensors: Sequence[Tensor]) -> Any:
        return TopKLogits(*tensors)


#: Encodings of a tensor.
Codec: TypeAlias = Cast | Int8 | TopK | CustomCodec


@functools.lru_cache(256)
def parts_of(codec: Codec, field: Field) -> tuple[Part, ...]:
    """Return the parts that a tensor becomes, end to end.

    Raises:
        ConfigError: the codec does not take tensors of such a shape or dtype.
    """
    try:
        return codec._parts(field)
    except ConfigError as error:
        raise ConfigError(f'tensor "{field.name}": {error}') from None


def encode(
    codec: Codec,
    field: Field,
    value: Any,
    rows: tuple[int, ...],
    outs: Sequence[memoryview],
    offset: int,
) -> None:
    """Write the tensors of `len(outs)` samples; on an error, part of them may be written.

    Args:
        codec: The encoding.
        field: The tensor of one sample.
        value: Values, dtype [*rows, *shape], or another form that the codec takes: tensors on any device, or arrays.
        rows: () for one sample, otherwise their number.
        outs: The bytes of each sample, writable.
        offset: Byte at which the tensor begins in a sample.

    Raises:
        ConfigError: the value has another shape or dtype, or one that the codec cannot hold.
        ImportError: a number for a dtype that only torch has, and torch is not installed.
    """
    codec._write(field, value, rows, outs, offset)


def decode(codec: Codec, field: Field, sources: Sequence[Any], offset: int, rows: tuple[int, ...]) -> Any:
    """Return the tensors of as many samples as there are rows, stacked; see `assemble`.

    Args:
        codec: The encoding.
        field: The tensor of one sample.
        sources: The bytes of each sample, long enough.
        offset: Byte at which the tensor begins in a sample.
        rows: () for one sample, otherwise their number.

    Raises:
        WireError: a sample has what no encoder writes.
        ConfigError: a codec of the user's made another shape or dtype.
        ImportError: torch is not installed.
    """
    return assemble(codec, field, read(field.name, parts_of(codec, field), sources, offset, rows))


def assemble(codec: Codec, field: Field, tensors: Sequence[Tensor]) -> Any:
    """Return what a user gets of the decoded parts: the tensor, or `TopKLogits`.

    Args:
        codec: the encoding.
        field: the tensor of one sample.
        tensors: those of its parts, dtype [*rows, *shape] each.

    Raises:
        ConfigError: a codec of the user's made another shape or dtype.
        WireError: a sample has what a codec of the user's does not write.
    """
    return codec._assemble(field, tensors)


@functools.lru_cache(256)
def _topk(dtype: str, row_len: int, k: int) -> _core.TopK:
    return _core.TopK(dtype, row_len, k)


def _whole(what: str, value: object, least: int, most: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not least <= number <= most:
        raise ConfigError(f"{what} must be a whole number from {least} to {most}, got {value!r}")
    return number


def _has_dtype(value: Any, name: str) -> bool:
    """Return whether a tensor or an array has a dtype."""
    if is_tensor(value):
        return bool(value.dtype == torch_dtype(name))
    return str(getattr(value, "dtype", None)) == name


#: Dtypes that a cast can store.
_STORED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
#: The longest row: indices are int32.
_MAX_ROW = 2**31 - 1
