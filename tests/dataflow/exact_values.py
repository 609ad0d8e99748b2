"""Values of every dtype and shape, and whether two are the same to the bit."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from softs_fast.dataflow.store.places import ITEM_BYTES
from softs_fast.dataflow.store.values import Value


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def same(value: Value, other: Value) -> bool:
    """Whether two values have the same type, dtype, shape and bits."""
    if isinstance(value, list):
        return isinstance(other, list) and len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, Tensor):
        return (
            isinstance(other, Tensor)
            and (value.dtype, value.shape) == (other.dtype, other.shape)
            and torch.equal(bits(value), bits(other))
        )
    if isinstance(value, float):
        return type(other) is float and struct.pack("<d", value) == struct.pack("<d", other)
    return type(value) is type(other) and value == other


def tensors_of_every_dtype() -> list[Value]:
    """Random bits in several shapes of each dtype that torch has."""
    torch.manual_seed(0)
    rows: list[Value] = []
    for name in [name for name in ITEM_BYTES if hasattr(torch, name)]:
        dtype: torch.dtype = getattr(torch, name)
        for shape in [(), (0,), (1,), (7,), (64,), (3, 5), (2, 0, 3), (1, 2, 3, 4)]:
            n_bytes = math.prod(shape) * dtype.itemsize
            data = torch.randint(0, 2 if name == "bool" else 256, (n_bytes,), dtype=torch.uint8)
            rows.append(data.view(dtype).view(shape) if n_bytes else torch.empty(shape, dtype=dtype))
    return rows
