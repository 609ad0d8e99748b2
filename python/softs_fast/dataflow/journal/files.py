"""Files of tensors and plain values: written durably, and read without running anything that they hold."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch

from ...errors import FlowError

__all__ = ["read", "write"]


def write(path: Path, what: str, values: dict[str, Any]) -> None:
    """Write a new file of which only this user may read, and sync it.

    Args:
        path: of the file.
        what: the values are, for errors.
        values: tensors, numbers, text, lists and dicts.

    Raises:
        FlowError: a value is of another kind, so it could not be read again.
        OSError: it cannot be written.
    """
    buffer = io.BytesIO()
    try:
        torch.save(values, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except (pickle.PicklingError, pickle.UnpicklingError, TypeError, AttributeError) as error:
        raise FlowError(
            f"{what} cannot be saved: need tensors, numbers, text, lists and dicts: {str(error)[:400]}"
        ) from None
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
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise FlowError(f"{path} cannot be read: {error}") from None
    return found
