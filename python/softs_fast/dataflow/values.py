"""Values of rows: a closed set of types, and how columns of a batch are made of them and cut again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import FlowError
from ..tensors import RaggedTensor

__all__ = ["Column", "Value", "check_value", "cut", "digest_of", "join", "length_of", "n_bytes_of"]

#: One column of one row; None: the row has nothing there.
Value = Tensor | list[Tensor] | bytes | str | bool | int | float | None
#: One column of a batch: stacked [rows, ...], end to end where lengths differ, or a list.
Column = Tensor | RaggedTensor | list[Any]

_SCALARS = (bytes, str, bool, int, float)


def cut(name: str, column: object, n_rows: int) -> list[Value]:
    """Return the value of each row; tensors are copied and have no gradient.

    Args:
        name: of the column, for errors.
        column: tensor [n_rows, ...], ragged tensor, or list with an element for each row.
        n_rows: how many there are.

    Raises:
        FlowError: it has another number of rows, or an element is of a type that rows cannot have.
    """
    if isinstance(column, RaggedTensor):
        values: Sequence[Any] = [tensor.detach().clone() for tensor in column.unbind()]
    elif isinstance(column, Tensor):
        if not column.ndim:
            raise FlowError(f"column {name!r} is a tensor without dimensions; need [{n_rows}, ...]")
        values = column.detach().clone().unbind()
    elif isinstance(column, (list, tuple)):
        values = [_copied(name, value) for value in column]
    else:
        raise FlowError(
            f"column {name!r} is a {type(column).__name__}; need a tensor, a RaggedTensor or a list"
        )
    if len(values) != n_rows:
        raise FlowError(f"column {name!r} has {len(values)} rows; need {n_rows}")
    return list(values)


def check_value(name: str, value: object) -> Value:
    """Return a value that a row can have.

    Args:
        name: of its column, for errors.
        value: any.

    Raises:
        FlowError: it is of another type.
    """
    if value is None or isinstance(value, (Tensor, *_SCALARS)):
        return value
    if isinstance(value, list) and all(isinstance(one, Tensor) for one in value):
        return value
    raise FlowError(
        f"column {name!r} has a {type(value).__name__}; rows have tensors, lists of tensors, bytes, str, bool, int, float, None"
    )


def _copied(name: str, value: object) -> Value:
    checked = check_value(name, value)
    if isinstance(checked, Tensor):
        return checked.detach().clone()
    return [one.detach().clone() for one in checked] if isinstance(checked, list) else checked


def join(values: Sequence[Value]) -> Column:
    """Return a column of a batch.

    Tensors of one shape are stacked; if they differ in their first dimension only, they go end to end; all else is a
    list, also if a single row has None.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values) or not tensors:
        return list(values)
    kinds = {(one.dtype, one.device, one.ndim, one.shape[1:]) for one in tensors}
    if len(kinds) == 1 and len({one.shape for one in tensors}) == 1:
        return torch.stack(tensors)
    if len(kinds) == 1:
        return RaggedTensor.from_samples(tensors)
    return list(tensors)


def n_bytes_of(value: Value) -> int:
    """Return how many bytes of data a value has; 8 for a number, 0 for None."""
    if value is None:
        return 0
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list):
        return sum(n_bytes_of(one) for one in value)
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 8


def length_of(value: Value) -> int:
    """Return how long a value is: the first dimension of a tensor, 1 without dimensions; of a list the sum of its tensors;
    the bytes of bytes and of text in UTF-8; 0 of numbers and None.
    """
    if isinstance(value, Tensor):
        return value.shape[0] if value.ndim else 1
    if isinstance(value, list):
        return sum(map(length_of, value))
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    return len(value) if isinstance(value, bytes) else 0


def digest_of(values: Iterable[tuple[str, Value]]) -> str:
    """Return 16 hexadecimal digits of a digest of names, types, shapes and bits."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in values:
        digest.update(f"{name}\0".encode())
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Tensor):
                digest.update(f"{one.dtype} {tuple(one.shape)}\0".encode())
                flat = one.detach().cpu().contiguous().flatten()
                digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
            else:
                data = one if isinstance(one, bytes) else repr(one).encode()
                digest.update(f"{type(one).__name__} {len(data)}\0".encode() + data)
    return digest.hexdigest()
