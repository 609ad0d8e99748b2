"""Values of rows as bytes, and values of bytes. Tensors keep dtype, shape and bits; nothing is pickled."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import FlowError
from ..values import Value
from .places import ITEM_BYTES, Part, Place, spread

__all__ = ["Encoded", "decode", "empty_tensors", "encode"]

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(slots=True)
class Encoded:
    """A value as it is written.

    Attributes:
        kind: of the value.
        parts: dtype and shape of each tensor.
        n_bytes: of the value.
        tensors: contiguous, in the memory of the host.
        data: bytes of a value that has no tensors.
    """

    kind: str
    parts: tuple[Part, ...]
    n_bytes: int
    tensors: tuple[Tensor, ...]
    data: bytes


def encode(column: str, value: Value) -> Encoded:
    """Return a value as it is written; tensors are copied only if they are not contiguous in the memory of the host.

    Args:
        column: of the value, for errors.
        value: of a row.

    Raises:
        FlowError: it is of another type or dtype than rows have, or a tensor that is not strided.
    """
    if isinstance(value, Tensor):
        plain = _plain(column, value)
        dtype = plain.dtype
        return Encoded(
            "tensor", ((_NAMES[dtype], tuple(plain.shape)),), plain.numel() * dtype.itemsize, (plain,), b""
        )
    if isinstance(value, list):
        tensors = tuple(_plain(column, one) for one in value)
        parts = tuple((_NAMES[one.dtype], tuple(one.shape)) for one in tensors)
        return Encoded("tensors", parts, spread(parts)[1], tensors, b"")
    kind, data = _as_bytes(column, value)
    return Encoded(kind, (), len(data), (), data)


def decode(place: Place, data: bytes) -> Value:
    """Return a value that has no tensors.

    Raises:
        FlowError: the bytes are not of that kind.
    """
    try:
        if place.kind == "bytes":
            return data
        if place.kind == "str":
            return data.decode("utf-8", "surrogatepass")
        if place.kind == "int":
            return int.from_bytes(data, "little", signed=True)
        if place.kind == "float":
            return float(struct.unpack("<d", data)[0])
        return bool(data[0])
    except (ValueError, struct.error, IndexError) as error:
        raise FlowError(
            f"value at {place.offset} of worker {place.worker} is no {place.kind}: {error}"
        ) from None


def empty_tensors(parts: Sequence[Part]) -> list[Tensor]:
    """Return new tensors of these dtypes and shapes, end to end in one piece of memory for each dtype.

    Raises:
        FlowError: this version of torch has no such dtype.
    """
    of_dtype: dict[str, list[int]] = {}
    for i, (dtype, _) in enumerate(parts):
        of_dtype.setdefault(dtype, []).append(i)
    made: list[Tensor] = [torch.empty(0)] * len(parts)
    for dtype, places in of_dtype.items():
        shapes = [parts[i][1] for i in places]
        counts = [shape[0] if len(shape) == 1 else math.prod(shape) for shape in shapes]
        whole = torch.empty(sum(counts), dtype=_torch_dtype(dtype))
        for i, shape, flat in zip(places, shapes, whole.split_with_sizes(counts), strict=True):
            made[i] = flat if len(shape) == 1 else flat.view(shape)
    return made


def _torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name.

    Raises:
        FlowError: this version of torch has no such dtype.
    """
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise FlowError(f"torch {torch.__version__} has no dtype {name}; use the version of the other worker")
    return dtype


def _plain(column: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise FlowError(f"column {column!r} has a list with a {type(value).__name__}; need a list of tensors")
    if value.layout is not torch.strided or value.dtype not in _NAMES:
        raise FlowError(
            f"column {column!r} has a tensor of {value.dtype}, {value.layout}; need a strided one of {', '.join(_DTYPES)}"
        )
    if value.requires_grad:
        value = value.detach()
    if value.is_neg() or value.is_conj():
        value = value.resolve_neg().resolve_conj()
    if not value.is_cpu:
        value = value.cpu()
    return value if value.is_contiguous() else value.contiguous()


def _as_bytes(column: str, value: object) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return "bytes", value
    if isinstance(value, str):
        return "str", value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return "bool", bytes([value])
    if isinstance(value, int):
        return "int", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    raise FlowError(
        f"column {column!r} has a {type(value).__name__}; rows have tensors, lists of tensors, bytes, str, bool, int, float"
    )
