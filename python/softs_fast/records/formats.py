"""Values to and from bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, get_args

import msgspec

from ..errors import WireError
from .kinds import checked
from .paths import named

__all__ = ["Format", "Json", "Packed"]

_Value = TypeVar("_Value")
_UNREADABLE = (msgspec.DecodeError, ValueError, TypeError, RecursionError)


class Format(Generic[_Value]):
    """One value, or one of several, as bytes.

    Args:
        kinds: Class of the value, or a union of classes, each with a tag.
        most_bytes: Most bytes that an encoded value may have.
        what: Name of the value, for errors.
    """

    _codec: Any

    def __init__(self, kinds: object, *, most_bytes: int, what: str) -> None:
        self.most_bytes, self.what = most_bytes, what
        self._kinds: dict[Any, Any] = {one.__struct_config__.tag: one for one in get_args(kinds) or (kinds,)}
        self._write: Callable[[Any], bytes] = self._codec.Encoder().encode
        self._read: Callable[[bytes | bytearray], Any] = self._codec.Decoder(kinds).decode
        self._any = self._codec.Decoder()

    def encode(self, value: _Value) -> bytes:
        """Return the bytes of a value.

        Raises:
            WireError: they are too many, or a field has what cannot be written.
        """
        try:
            data: bytes = self._write(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise WireError(
                f"{self.what}: a {type(value).__name__} cannot be sent: {str(error)[:200]}"
            ) from None
        if len(data) > self.most_bytes:
            raise WireError(
                f"{self.what}: a {type(value).__name__} has {len(data):,} bytes; at most {self.most_bytes:,}"
            )
        return data

    def decode(self, data: bytes | bytearray) -> _Value:
        """Return the value of bytes.

        Raises:
            WireError: they are too many, or none of these values; the text names the field and its bound.
        """
        if len(data) > self.most_bytes:
            raise WireError(f"{self.what} of {len(data):,} bytes; at most {self.most_bytes:,}")
        try:
            value: _Value = self._read(data)
        except _UNREADABLE as error:
            raise WireError(f"{self.what} ({len(data):,} bytes): {self._explained(data, error)}") from None
        return value

    def _explained(self, data: bytes | bytearray, error: Exception) -> str:
        (kind, *others) = self._kinds.values()
        if others:
            try:
                found = self._any.decode(data)
            except _UNREADABLE:
                return f"cannot be read: {error}"
            tag = found[0] if isinstance(found, list) and found else None
            if type(tag) is not int or tag not in self._kinds:
                return f"unknown kind {str(tag)[:60]}; install the same version of softs-fast on both sides"
            kind = self._kinds[tag]
        return named(kind, str(error))


class Packed(Format[_Value]):
    """Values as msgpack."""

    _codec = msgspec.msgpack

    def decode(self, data: bytes | bytearray) -> _Value:
        """Return the value of bytes. One by position has all of its items, also those with defaults.

        Raises:
            WireError: they are too many, or none of these values.
        """
        value = super().decode(data)
        kind: Any = type(value)
        n_items = len(kind.__struct_fields__) + (kind.__struct_config__.tag is not None)
        if kind.__struct_config__.array_like and (found := _n_items(data)) != n_items:
            raise WireError(f"{self.what}: a {kind.__name__} has {found} items; need {n_items}")
        return value


class Json(Format[_Value]):
    """Values as JSON, UTF-8 without spaces."""

    _codec = msgspec.json

    def encode(self, value: _Value) -> bytes:
        """Return the bytes of a value, which is checked first: JSON has no number that is not finite.

        Raises:
            WireError: a field breaks its bounds, or there are too many bytes.
        """
        return super().encode(checked(value))


def _n_items(data: bytes | bytearray) -> int:
    """Return the length of the array that msgpack begins with."""
    if data[0] >> 4 == 9:
        return data[0] & 15
    return int.from_bytes(data[1 : 3 if data[0] == 0xDC else 5], "big")
