"""Dataclasses as JSON: every field is checked for its type, its range and its length when it is read."""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ...errors import WireError
from .limits import MAX_ITEMS, MAX_JSON_BYTES, MAX_TEXT

__all__ = ["decode", "encode"]

_Record = TypeVar("_Record")
_MAX_INTEGER = (1 << 63) - 1


def encode(record: Any) -> bytes:
    """Return a dataclass as JSON, ASCII, without spaces.

    Raises:
        WireError: a number is not finite.
    """
    try:
        return json.dumps(_plain(record), separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise WireError(f"{type(record).__name__} cannot be written as JSON: {error}") from None


def decode(kind: type[_Record], data: bytes | bytearray, limit: int = MAX_JSON_BYTES) -> _Record:
    """Return a dataclass from JSON. Keys that it has not are left out, so that a later version may add some.

    Fields may be int (0 to 2^63 - 1), float (finite), str (at most MAX_TEXT characters), bool, Literal, another
    dataclass, tuples of any length of these, and None. `metadata` may have "least" and "most" of a number, and
    "most" of the characters of a text or the items of a tuple.

    Args:
        kind: the dataclass.
        data: as `encode` writes it.
        limit: bytes that it may have.

    Raises:
        WireError: the data are too long or no JSON of this class; the text names the field.
    """
    name = kind.__name__
    if len(data) > limit:
        raise WireError(f"{name} has {len(data)} bytes; {limit} at most")
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{name} of {len(data)} bytes is not JSON: {error}") from None
    record: _Record = _record(kind, value, name)
    return record


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise WireError(f"{where} is not an object")
    hints, given = _hints(kind), {}
    for one in fields(kind):
        if one.name in value:
            given[one.name] = _checked(hints[one.name], value[one.name], f"{where}.{one.name}", one.metadata)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise WireError(f"{where} lacks {one.name}")
    try:
        return kind(**given)
    except ValueError as error:
        raise WireError(f"{where}: {error}") from None


def _checked(hint: Any, value: Any, where: str, limits: Any) -> Any:
    origin = get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in get_args(hint):
            return None
        (hint,) = [one for one in get_args(hint) if one is not types.NoneType]
        return _checked(hint, value, where, limits)
    if origin is Literal:
        if value not in get_args(hint) or type(value) is not str:
            raise WireError(f"{where} is {str(value)[:64]!r}; need {', '.join(map(str, get_args(hint)))}")
        return value
    if origin is tuple:
        most = limits.get("most_items", MAX_ITEMS)
        if not isinstance(value, list) or len(value) > most:
            raise WireError(f"{where} is not a list of {most} items at most")
        arguments = get_args(hint)
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) != len(value):
            raise WireError(f"{where} has {len(value)} items; need {len(kinds)}")
        return tuple(
            _checked(one, item, f"{where}[{i}]", limits)
            for i, (one, item) in enumerate(zip(kinds, value, strict=True))
        )
    if is_dataclass(hint):
        return _record(hint, value, where)
    return _simple(hint, value, where, limits)


def _simple(hint: Any, value: Any, where: str, limits: Any) -> Any:
    if hint is bool:
        if type(value) is not bool:
            raise WireError(f"{where} is not true or false")
        return value
    if hint is str:
        most = limits.get("most", MAX_TEXT)
        if type(value) is not str or len(value) > most:
            raise WireError(f"{where} is not a text of {most} characters at most")
        if "\0" in value or not _is_unicode(value):
            raise WireError(f"{where} has characters that no text has")
        return value
    if hint is float and type(value) is int and abs(value) <= _MAX_INTEGER:
        value = float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        raise WireError(f"{where} is not {'a number' if hint is float else 'a whole number'}")
    least = limits.get("least", 0 if hint is int else -math.inf)
    most = limits.get("most", _MAX_INTEGER if hint is int else math.inf)
    if not least <= value <= most:
        raise WireError(f"{where} is {value}; need {least} to {most}")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
