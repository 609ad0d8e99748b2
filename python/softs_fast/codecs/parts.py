"""Parts of a sample's bytes that are decoded to one tensor each, and the native calls that read and write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..errors import ConfigError, WireError
from ..tensors import ITEM_BYTES, array_dtype, checked_value, import_numpy, on_host, tensor_over

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Field", "Part", "host_bytes", "read", "read_into", "write"]


class Field(NamedTuple):
    """The tensor of one sample that is encoded: a `TensorSpec` without its codec."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Part:
    """A range of bytes that is decoded to one tensor.

    Args:
        offset: Byte at which the part begins in the bytes of its tensor.
        shape: Shape of the decoded tensor, without a batch dimension.
        dtype: Dtype of the decoded tensor.
        native: The native codec that encodes and decodes it; None: it is copied.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    native: _core.Codec | None

    @property
    def n_bytes(self) -> int:
        """Its length."""
        n_bytes = self.decoded_bytes
        if self.native is not None:
            n_bytes = self.native.encoded_len(n_bytes)
        return n_bytes

    @property
    def decoded_bytes(self) -> int:
        """Size of the decoded tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def host_bytes(field: Field, value: Any, rows: tuple[int, ...]) -> Any:
    """Return the bytes of a tensor, array or number as one row, uint8 [n], copied only if necessary.

    Args:
        field: name, shape and dtype that the value must have.
        value: dtype [*rows, *shape].
        rows: () for one sample, otherwise their number.

    Raises:
        ConfigError: another shape or dtype, or no tensor, array or number.
        ImportError: a number for a dtype that only torch has, and torch is not installed.
    """
    np = import_numpy()
    checked = checked_value(field.name, field.dtype, (*rows, *field.shape), value)
    return np.ascontiguousarray(on_host(checked)).reshape(-1).view(np.uint8)


def write(
    name: str, native: _core.Codec | _core.TopK | None, values: Any, outs: Sequence[memoryview], offset: int
) -> None:
    """Encode the values of `len(outs)` samples, one after the other, into each sample from byte `offset` on.

    Args:
        name: Name of the tensor, for errors.
        native: The native codec; None: they are copied.
        values: Bytes that `host_bytes` returned.
        outs: The bytes of each sample, writable.
        offset: Byte at which the values begin in each sample.

    Raises:
        ConfigError: a value that the encoding cannot hold.
    """
    if not len(values):
        return
    if native is None:
        _core.copy_rows(values, list(outs), offset)
        return
    try:
        native.encode(values, list(outs), offset)
    except ConfigError as error:
        raise ConfigError(f'tensor "{name}": {error}') from None


def read(
    name: str, parts: Sequence[Part], sources: Sequence[Any], offset: int, rows: tuple[int, ...]
) -> list[Tensor]:
    """Return the tensors of some parts, dtype [*rows, *shape] each.

    Args:
        name: Name of the tensor, for errors.
        parts: The parts to read.
        sources: The bytes of as many samples as there are rows, each long enough.
        offset: Byte at which the tensor begins in a sample.
        rows: () for one sample, otherwise their number.

    Raises:
        WireError: a sample has what no encoder writes.
        ImportError: torch is not installed.
    """
    np = import_numpy()
    tensors = []
    for part in parts:
        array = np.empty((*rows, *part.shape), array_dtype(part.dtype))
        if array.size:
            read_into(name, part, sources, offset, array.reshape(-1).view(np.uint8))
        tensors.append(tensor_over(part.dtype, array))
    return tensors


def read_into(name: str, part: Part, sources: Sequence[Any], offset: int, out: Any) -> None:
    """Decode one part of some samples into memory for all of them.

    Args:
        name: Name of the tensor, for errors.
        part: The part to read.
        sources: The bytes of each sample.
        offset: Byte at which the part's tensor begins in a sample.
        out: Writable bytes of `len(sources)` tensors, not empty.

    Raises:
        ConfigError: a sample ends before the part does.
        WireError: a sample has what no encoder writes.
    """
    start, n_bytes = offset + part.offset, part.decoded_bytes
    if part.native is None:
        flat = memoryview(out)
        for i, source in enumerate(sources):
            flat[i * n_bytes : (i + 1) * n_bytes] = memoryview(source).cast("B")[start : start + n_bytes]
        return
    try:
        part.native.decode(list(sources), start, out)
    except WireError as error:
        raise WireError(f'tensor "{name}": {error}') from None
