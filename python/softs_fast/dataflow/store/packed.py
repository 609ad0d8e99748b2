"""Values in memory: where they are written, and read from. Values of a file are packed, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import _kernels
from ...errors import WireError
from .columns import Places
from .encoding import EncodedColumn, Targets, decode, empty_values, encode
from .memory import copy_memory
from .places import Form, SegmentAddress, form_bytes
from .values import Value

__all__ = ["Packed", "fill", "pack", "unpack", "write_values"]

_Integers = np.ndarray[Any, np.dtype[np.int64]]
_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: Packed values are in no segment.
_NOWHERE = SegmentAddress(0, 0, 0, 0, bytes(16), 0, "", "")


@dataclass(frozen=True)
class Packed:
    """Values as bytes.

    Attributes:
        forms: the different kinds and parts of values.
        form_of: int64 [values], the form of each.
        n_bytes: int64 [values], of each.
        data: uint8 [sum of n_bytes].
    """

    forms: tuple[Form, ...]
    form_of: _Integers
    n_bytes: _Integers
    data: _Bytes


def pack(column: str, values: Sequence[Value]) -> Packed:
    """Return values as bytes.

    Args:
        column: Name of the column, for errors.
        values: Values of the rows.

    Raises:
        FlowError: one is of another type than rows have.
    """
    encoded = encode(column, values)
    n_bytes = np.array(encoded.n_bytes, np.int64)
    # Between the tensors of a list there may be gaps; they are zeros, so that the same values are the same bytes.
    data = np.zeros(int(n_bytes.sum()), np.uint8)
    write_values(data, encoded, np.cumsum(n_bytes) - n_bytes)
    return Packed(tuple(encoded.forms), np.array(encoded.form_of, np.int64), n_bytes, data)


def unpack(packed: Packed) -> list[Value]:
    """Return the values of bytes; the same bits, dtypes and shapes.

    Raises:
        WireError: a value has another number of bytes than its form, or than there are.
        FlowError: bytes are no value of their form, or this version of torch lacks a dtype.
    """
    forms, form_of, n_bytes = packed.forms, packed.form_of, packed.n_bytes
    if len(form_of) != len(n_bytes) or (len(n_bytes) and n_bytes.min() < 0):
        raise WireError(f"{len(n_bytes)} packed values have {len(form_of)} forms, or less than 0 bytes")
    if int(n_bytes.sum()) != len(packed.data):
        raise WireError(f"packed values have {int(n_bytes.sum())} bytes, and {len(packed.data)} are there")
    if len(form_of) and not 0 <= form_of.min() <= form_of.max() < len(forms):
        raise WireError(f"packed values have forms up to {form_of.max()}, and there are {len(forms)}")
    for number, form in enumerate(forms):
        need = form_bytes(form)
        wrong = n_bytes[(form_of == number) & (n_bytes != need)] if need is not None else n_bytes[:0]
        if len(wrong):
            raise WireError(f"a packed {form[0]} has {int(wrong[0])} bytes; need {need}")
    offsets = np.cumsum(n_bytes) - n_bytes
    places = Places(0, _NOWHERE, offsets, n_bytes, np.zeros(len(n_bytes), np.uint64), forms, form_of)
    found = empty_values(places)
    fill(found, places, packed.data)
    return found.values


def fill(found: Targets, places: Places, data: _Bytes) -> None:
    """Copy values from where their places say in `data`."""
    for i in found.others:
        start = int(places.offsets[i])
        value = data[start : start + int(places.n_bytes[i])].tobytes()
        found.values[i] = decode(places.forms[places.form_of[i]][0], value)
    _kernels.snapshot_scatter(data.ctypes.data, found.copies)


def write_values(data: _Bytes, encoded: EncodedColumn, offsets: _Integers) -> None:
    """Write a column to memory, each value where `offsets` says."""
    for i, one in encoded.data.items():
        data[offsets[i] : offsets[i] + len(one)] = np.frombuffer(one, np.uint8)
    if not encoded.tensors:
        return
    pointers = np.array([tensor.data_ptr() for tensor in encoded.tensors], np.int64)
    targets = data.ctypes.data + offsets[encoded.rows] + np.array(encoded.at, np.int64)
    copy_memory(targets, pointers, np.array(encoded.sizes, np.int64))
