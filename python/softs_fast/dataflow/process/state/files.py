"""Files of tensors and plain values: written durably, and read without running anything that they hold."""

from __future__ import annotations

import _codecs
import io
import os
import pickle
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....errors import FlowError

__all__ = ["read", "write"]

#: Types that may be in a file beside those that torch.load allows by itself. None of them runs anything.
_TYPES: list[Any] = [
    *(defaultdict, set, frozenset, np.ndarray, np.dtype, _codecs.encode),
    *{type(np.dtype(kind)) for kind in np.typecodes["All"] if kind != "O"},
    *(one.__reduce__()[0] for one in (np.float64(0), np.zeros(0))),
]
#: Stands for a deque, which torch.load refuses; behind it the length that it may have, and its elements.
_DEQUE = "softs-fast deque"
_ERRORS = (pickle.PicklingError, pickle.UnpicklingError, TypeError, AttributeError, RuntimeError)


def write(path: Path, what: str, values: dict[str, Any]) -> None:
    """Write a new file of which only this user may read, and sync it.

    Args:
        path: Path of the file.
        what: Name of the values, for errors.
        values: Tensors, numbers, text and numpy values, in containers of Python.

    Raises:
        FlowError: a value is of another kind, so it could not be read again; it is named.
        OSError: it cannot be written.
    """
    buffer = _packed(values)
    if isinstance(buffer, str):
        where, error = _refused(values, buffer)
        raise FlowError(
            f"{what} cannot be saved: {where or 'they'} must be of tensors, numbers, text and numpy values in lists, "
            f"tuples, sets, deques and dicts, so that a later process can read it: {error[:300]}"
        )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> dict[str, Any]:
    """Return what `write` has written; nothing in the file is run.

    Raises:
        FlowError: it cannot be read.
    """
    try:
        with torch.serialization.safe_globals(_TYPES):
            values: dict[str, Any] = _with_deques(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, EOFError, ValueError, *_ERRORS) as error:
        raise FlowError(f"{path} cannot be read: {error}") from None
    return values


def _packed(values: Any) -> io.BytesIO | str:
    """Return the bytes of values that can be read again, or why they cannot be."""
    buffer = io.BytesIO()
    try:
        torch.save(_without_deques(values), buffer)
        buffer.seek(0)
        with torch.serialization.safe_globals(_TYPES):
            torch.load(buffer, map_location="cpu", weights_only=True)
    except _ERRORS as error:
        return str(error).split("\n\t(1)")[0]
    return buffer


def _refused(values: Any, error: str) -> tuple[str, str]:
    """Return where the first value is that cannot be read again, and why."""
    if isinstance(values, dict):
        for key, one in values.items():
            found = _packed(one)
            if isinstance(found, str):
                inner, why = _refused(one, found)
                return f".{key}{inner}" if isinstance(key, str) else f"[{key!r}]{inner}", why
    return "", error


def _without_deques(value: Any) -> Any:
    if type(value) is deque:
        return (_DEQUE, value.maxlen, [_without_deques(one) for one in value])
    if type(value) is dict:
        return {key: _without_deques(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without_deques(one) for one in value)
    return value


def _with_deques(value: Any) -> Any:
    if type(value) is tuple and len(value) == 3 and value[0] == _DEQUE:
        return deque((_with_deques(one) for one in value[2]), value[1])
    if type(value) is dict:
        return {key: _with_deques(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_deques(one) for one in value)
    return value
