"""Values of rows: a closed set of types, and how columns of a batch are made of them and cut again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ConfigError, FlowError
from ...tensors import RaggedTensor, local_tensor, shard_of

__all__ = [
    "Column",
    "Value",
    "check_value",
    "cut",
    "digest_of",
    "join",
    "length_of",
    "n_bytes_of",
    "n_not_finite",
    "plain_number",
]

#: One column of one row; None: the row has nothing there.
Value = Tensor | list[Tensor] | bytes | str | bool | int | float | None
#: One column of a batch: stacked [rows, ...], end to end where lengths differ, or a list.
Column = Tensor | RaggedTensor | list[Any]

#: Items of a tensor that is looked at together with others.
_MOST_TOGETHER = 1 << 14

#: What makes a value of each type of one of a subclass.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
}
_EXPECTED = "a tensor, a list of tensors, a NumPy array or number, bytes, str, bool, int, float or None"


def cut(name: str, column: object, n_rows: int) -> list[Value]:
    """Return the value of each row; tensors are copied and have no gradient.

    Args:
        name: Name of the column, for errors.
        column: Tensor or NumPy array [n_rows, ...], ragged tensor, or list with an element for each row.
        n_rows: Number of rows.

    Raises:
        FlowError: it has another number of rows, or an element is of a type that rows cannot have.
    """
    if isinstance(column, RaggedTensor):
        values: Sequence[Any] = [tensor.detach().clone() for tensor in column.unbind()]
    elif isinstance(column, (Tensor, np.ndarray)) and _is_numeric(column):
        if not column.ndim:
            raise FlowError(f"column {name!r} is a tensor without dimensions; expected [{n_rows}, ...]")
        values = _copied(name, column).unbind()
    elif isinstance(column, (list, tuple, np.ndarray)):
        values = [_copied(name, value, place) for place, value in enumerate(column)]
    else:
        raise FlowError(
            f"column {name!r} is a {type(column).__name__}; expected a tensor, a NumPy array, a RaggedTensor or a list"
        )
    if len(values) != n_rows:
        raise FlowError(f"column {name!r} has {len(values)} rows; expected {n_rows}")
    return list(values)


def check_value(name: str, value: object, place: int | None = None) -> Value:
    """Return a value that a row can have, as a plain type: what NumPy has becomes a tensor or a number.

    Args:
        name: Name of its column, for errors.
        value: Value of any type.
        place: Index of the row in the batch, for errors.

    Raises:
        FlowError: it is of another type, or a tensor without plain memory of this process.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return _plain_tensor(name, value, place)
    if isinstance(value, list) and all(isinstance(one, (Tensor, np.ndarray)) for one in value):
        return [_plain_tensor(name, one, place) for one in value]
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            # What is sent to another process is no subclass there either.
            made: Value = plain(value)  # the value itself, if it is of the type
            return made
    what = type(value).__name__
    if isinstance(value, list):
        what = f"list of {', '.join(sorted({type(one).__name__ for one in value}))}"
    raise FlowError(f"column {name!r}{_at(place)} has a {what}; expected {_EXPECTED}")


def plain_number(what: str, value: object) -> float:
    """Return a number that a function reports.

    Args:
        what: Description of the number, for errors.
        value: Number of Python or NumPy, or tensor with one item.

    Raises:
        FlowError: it is none, or too large for a float.
    """
    one = value
    if isinstance(value, Tensor) and value.numel() == 1:
        try:
            one = local_tensor(what, value, written=False).item()
        except ConfigError as error:
            raise FlowError(str(error)) from None
    elif isinstance(value, (np.ndarray, np.generic)) and value.size == 1:
        one = value.item()
    if not isinstance(one, (bool, int, float)):
        raise FlowError(
            f"{what} is a {type(value).__name__}; expected a number of Python or NumPy, or a tensor with one item"
        )
    try:
        return float(one)
    except OverflowError:
        raise FlowError(f"{what} is an integer beyond the range of a float") from None


def _plain_tensor(name: str, value: Tensor | np.ndarray[Any, Any], place: int | None) -> Tensor:
    if isinstance(value, np.ndarray):
        try:
            # The copy has memory of its own, which may be written, with strides above 0.
            return torch.from_numpy(np.array(value, order="C"))
        except (TypeError, ValueError):
            raise FlowError(
                f"column {name!r}{_at(place)} has a NumPy array of {value.dtype}, which torch does not have; convert it"
            ) from None
    try:
        kind = "column" if place is None else f"row {place} of column"
        found = local_tensor(name, value, kind=kind, written=False)
    except ConfigError as error:
        raise FlowError(str(error)) from None
    part = shard_of(value)
    if part:
        raise FlowError(
            f"column {name!r}{_at(place)} has {part}; expected a whole tensor in each row: call full_tensor() first"
        )
    return found


def _is_numeric(column: Tensor | np.ndarray[Any, Any]) -> bool:
    """Return whether it is a tensor, or an array that is not of texts or objects."""
    return isinstance(column, Tensor) or column.dtype.kind not in "OSUV"


def _at(place: int | None) -> str:
    return "" if place is None else f", row {place} of the batch,"


def _copied(name: str, value: object, place: int | None = None) -> Any:
    checked = check_value(name, value, place)
    if isinstance(checked, Tensor):
        return checked.detach().clone()
    return [one.detach().clone() for one in checked] if isinstance(checked, list) else checked


def n_not_finite(values: Sequence[Value]) -> int:
    """Return how many values have a NaN or an infinity."""
    found = {place for place, value in enumerate(values) if type(value) is float and not math.isfinite(value)}
    # Small tensors of one kind are looked at together: a value that is not finite is rare.
    small: dict[tuple[torch.dtype, torch.device], list[tuple[int, Tensor]]] = {}
    for place, value in enumerate(values):
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, Tensor) or not (one.is_floating_point() or one.is_complex()):
                continue
            if one.numel() <= _MOST_TOGETHER:
                small.setdefault((one.dtype, one.device), []).append((place, one.reshape(-1)))
            elif not _is_finite(one):
                found.add(place)
    for some in small.values():
        if not _is_finite(torch.cat([one for _, one in some])):
            found.update(place for place, one in some if not _is_finite(one))
    return len(found)


def _is_finite(tensor: Tensor) -> bool:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return bool(torch.isfinite(tensor).all())


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
