"""Messages as JSON."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from ...records import Json, Record
from .limits import MAX_JSON_BYTES, MAX_STATUS_BYTES

__all__ = ["decode", "encode"]

_Record = TypeVar("_Record", bound=Record)


def encode(record: Record) -> bytes:
    """Return a message as JSON.

    Raises:
        WireError: a field breaks its bounds, or there are too many bytes.
    """
    return _format(type(record), MAX_STATUS_BYTES).encode(record)


def decode(kind: type[_Record], data: bytes | bytearray, limit: int = MAX_JSON_BYTES) -> _Record:
    """Return a message from JSON.

    Args:
        kind: Class of the message.
        data: JSON as `encode` writes it.
        limit: Bytes that the JSON may have.

    Raises:
        WireError: they are too many, or no message of this class; the text names the field.
    """
    record: _Record = _format(kind, limit).decode(data)
    return record


@functools.cache
def _format(kind: type[Record], limit: int) -> Json[Any]:
    return Json(kind, most_bytes=limit, what=f"body of a {kind.__name__}")
