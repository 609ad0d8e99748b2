"""Values of rows as bytes, and values of bytes. Tensors keep dtype, shape and bits; nothing is pickled."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ConfigError, FlowError
from ...tensors import as_plain, local_tensor
from .columns import Places
from .places import ITEM_BYTES, Form, spread
from .values import Value

__all__ = [
    "SENT_DTYPES",
    "EncodedColumn",
    "Targets",
    "decode",
    "dtype_name",
    "empty_values",
    "encode",
    "torch_dtype",
]

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
#: Dtypes that rows and weights may have.
SENT_DTYPES = _NAMES.keys()

_LAYOUT, _DTYPE, _SHAPE = attrgetter("layout"), attrgetter("dtype"), attrgetter("shape")
_IS_CPU, _REQUIRES_GRAD = attrgetter("is_cpu"), attrgetter("requires_grad")

_Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class EncodedColumn:
    """A column as it is written.

    Attributes:
        forms: Different kinds and parts of values, each with its number.
        form_of: Number of the form of each value.
        n_bytes: Bytes of each value.
        tensors: Tensors of all values, contiguous, in the memory of the host.
        sizes: Bytes of each tensor.
        rows: Number of the value to which each tensor belongs.
        at: Offset of each tensor in its value, in bytes.
        data: Bytes of values that have no tensors, by the numbers of the values.
    """

    forms: dict[Form, int] = field(default_factory=dict)
    form_of: list[int] = field(default_factory=list)
    n_bytes: list[int] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    data: dict[int, bytes] = field(default_factory=dict)

    def number(self, form: Form) -> int:
        """Return the number of a form."""
        return self.forms.setdefault(form, len(self.forms))


def encode(column: str, values: Sequence[Value]) -> EncodedColumn:
    """Return a column as it is written; tensors are copied only if they are not contiguous in the memory of the host.

    Args:
        column: Name of the column, for errors.
        values: Values of the rows.

    Raises:
        FlowError: one is of another type or dtype than rows have, or a tensor that is not strided.
    """
    found = EncodedColumn()
    if _are_plain(values):
        _encode_plain(found, values)
        return found
    # Most values of a column have one of a few shapes.
    known: dict[tuple[torch.dtype, torch.Size], tuple[int, int]] = {}
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            plain = _plain(column, value)
            key = (plain.dtype, plain.shape)
            seen = known.get(key)
            if seen is None:
                form: Form = ("tensor", ((_NAMES[plain.dtype], tuple(plain.shape)),))
                seen = known[key] = (found.number(form), plain.nbytes)
            found.form_of.append(seen[0])
            found.n_bytes.append(seen[1])
            found.tensors.append(plain)
            found.sizes.append(seen[1])
            found.rows.append(i)
            found.at.append(0)
        elif isinstance(value, list):
            tensors = [_plain(column, one) for one in value]
            parts = tuple((_NAMES[one.dtype], tuple(one.shape)) for one in tensors)
            starts, n_bytes = spread(parts)
            found.form_of.append(found.number(("tensors", parts)))
            found.n_bytes.append(n_bytes)
            found.tensors += tensors
            found.sizes += [one.nbytes for one in tensors]
            found.rows += [i] * len(tensors)
            found.at += starts
        else:
            kind, data = _as_bytes(column, value)
            found.form_of.append(found.number((kind, ())))
            found.n_bytes.append(len(data))
            found.data[i] = data
    return found


def _are_plain(values: Sequence[Value]) -> bool:
    """Return whether all values are tensors of one dtype that can be written as they are.

    Each question is asked of all of them in a loop of the interpreter's own: one value at a time takes twice as long.
    """
    if set(map(type, values)) != {Tensor}:
        return False
    tensors: list[Any] = list(values)
    dtypes = set(map(_DTYPE, tensors))
    return (
        len(dtypes) == 1
        and _NAMES.keys() >= dtypes
        and set(map(_LAYOUT, tensors)) == {torch.strided}
        and all(map(_IS_CPU, tensors))
        and all(map(Tensor.is_contiguous, tensors))
        and not any(map(_REQUIRES_GRAD, tensors))
        and not any(map(Tensor.is_neg, tensors))
        and not (tensors[0].is_complex() and any(map(Tensor.is_conj, tensors)))
    )


def _encode_plain(found: EncodedColumn, tensors: Sequence[Any]) -> None:
    shapes, dtype = list(map(_SHAPE, tensors)), tensors[0].dtype
    numbers, sizes = {}, {}
    for shape in dict.fromkeys(shapes):
        numbers[shape] = found.number(("tensor", ((_NAMES[dtype], tuple(shape)),)))
        sizes[shape] = shape.numel() * dtype.itemsize
    found.form_of = list(map(numbers.__getitem__, shapes))
    found.n_bytes = found.sizes = list(map(sizes.__getitem__, shapes))
    found.tensors, found.rows, found.at = list(tensors), list(range(len(shapes))), [0] * len(shapes)


@dataclass(slots=True)
class Targets:
    """New values, of which the tensors are not filled yet.

    Attributes:
        values: False where there is no tensor.
        copies: address, offset in the segment and bytes of each tensor.
        others: the numbers of values without tensors.
        pieces: the memory of tensors of one dtype each, in which values lie one behind the other.
    """

    values: list[Value]
    copies: list[tuple[int, int, int]]
    others: list[int]
    pieces: list[Tensor]


def empty_values(places: Places) -> Targets:
    """Return what values at some places are copied to: tensors of one dtype are in one piece of memory.

    Raises:
        FlowError: this version of torch has no such dtype.
    """
    found = Targets([False] * len(places), [], [], [])
    dtypes = [parts[0][0] if kind == "tensor" else "" for kind, parts in places.forms]
    for dtype in dict.fromkeys(dtypes):
        which = np.flatnonzero(np.array([one == dtype for one in dtypes])[places.form_of])
        if dtype:
            _empty_tensors(found, places, dtype, which)
            continue
        for i in which.tolist():
            kind, parts = places.forms[places.form_of[i]]
            if kind != "tensors":
                found.others.append(i)
                continue
            mine = [torch.empty(shape, dtype=torch_dtype(one), device="cpu") for one, shape in parts]
            found.values[i] = mine
            for tensor, at in zip(mine, spread(parts)[0], strict=True):
                found.copies.append((tensor.data_ptr(), int(places.offsets[i]) + at, tensor.nbytes))
    return found


def _empty_tensors(found: Targets, places: Places, dtype: str, which: _Integers) -> None:
    item = ITEM_BYTES[dtype]
    n_bytes = places.n_bytes[which]
    counts = n_bytes // item
    whole = torch.empty(int(counts.sum()), dtype=torch_dtype(dtype), device="cpu")
    found.pieces.append(whole)
    addresses = whole.data_ptr() + np.cumsum(n_bytes) - n_bytes
    found.copies += zip(addresses.tolist(), places.offsets[which].tolist(), n_bytes.tolist(), strict=True)
    shapes = [parts[0][1] if parts else () for _, parts in places.forms]
    tensors = whole.split_with_sizes(counts.tolist())
    if len(which) == len(places) and all(len(shape) == 1 for shape in shapes):
        found.values = list(tensors)
        return
    numbers = places.form_of[which].tolist()
    for i, number, flat in zip(which.tolist(), numbers, tensors, strict=True):
        shape = shapes[number]
        found.values[i] = flat if len(shape) == 1 else flat.view(shape)


def decode(kind: str, data: bytes) -> Value:
    """Return a value that has no tensors.

    Raises:
        FlowError: the bytes are not of that kind.
    """
    try:
        if kind == "bytes":
            return data
        if kind == "none":
            return None
        if kind == "str":
            return data.decode("utf-8", "surrogatepass")
        if kind == "int":
            return int.from_bytes(data, "little", signed=True)
        if kind == "float":
            return float(struct.unpack("<d", data)[0])
        return bool(data[0])
    except (ValueError, struct.error, IndexError) as error:
        raise FlowError(f"{len(data)} bytes of a row are no {kind}: {error}") from None


def torch_dtype(name: str) -> torch.dtype:
    """Return a dtype by the name that messages have.

    Raises:
        FlowError: this version of torch has no such dtype.
    """
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise FlowError(f"torch {torch.__version__} has no dtype {name}; use the version of the other worker")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in messages.

    Raises:
        FlowError: rows and weights do not have it.
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise FlowError(f"tensors of {dtype} cannot be sent; need one of {', '.join(_DTYPES)}")
    return name


def _plain(column: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise FlowError(f"column {column!r} has a list with a {type(value).__name__}; need a list of tensors")
    try:
        value = local_tensor(column, value, kind="column", dtypes=SENT_DTYPES, written=False)
    except ConfigError as error:
        raise FlowError(str(error)) from None
    return as_plain(value.detach() if value.requires_grad else value)


def _as_bytes(column: str, value: object) -> tuple[str, bytes]:
    if value is None:
        return "none", b""
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
        f"column {column!r} has a {type(value).__name__}; rows have tensors, lists of tensors, bytes, str, bool, int, float, None"
    )
