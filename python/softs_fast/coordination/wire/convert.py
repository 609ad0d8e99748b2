"""Converts dataclasses to messages of protobuf with fields of the same names, and back; every limit is checked."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ...errors import WireError
from ..job.options import MAX_TEXT
from . import coordinator_pb2
from .limits import N_BYTES, N_ITEMS

__all__ = ["fill", "numbers_of", "pb", "read"]

_T = TypeVar("_T")

#: The generated module, which has no types.
pb: Any = coordinator_pb2

# Reasons are for people, and may be of any length where they come from; so they are cut, and nothing else is.
_REASONS = {"text", "why", "reason", "log"}


def fill(message: Any, value: Any) -> None:
    """Copy the fields of a dataclass into a message.

    Raises:
        WireError: a field passes a limit.
    """
    cls: Any = type(value)
    for field in _plan(cls):
        part = getattr(value, field.name)
        if part is None:
            continue
        try:
            field.put(message, field.name, part)
        except (ValueError, TypeError) as error:
            raise WireError(f"{type(value).__name__}.{field.name}: {error}") from None


def read(cls: Callable[..., _T], message: Any) -> _T:
    """Return a dataclass with the fields of a message.

    Raises:
        WireError: a field passes a limit, or has a value that this version does not know.
    """
    values: dict[str, Any] = {}
    kind: Any = cls
    for field in _plan(kind):
        if field.is_optional and not message.HasField(field.name):
            values[field.name] = None
            continue
        try:
            values[field.name] = field.take(getattr(message, field.name))
        except ValueError as error:
            raise WireError(f"{kind.__name__}.{field.name}: {error}") from None
    return cls(**values)


@dataclass(frozen=True)
class _Field:
    """How one field is converted."""

    name: str
    is_optional: bool
    put: Callable[[Any, str, Any], None]
    take: Callable[[Any], Any]


@functools.cache
def _plan(cls: Any) -> tuple[_Field, ...]:
    hints = get_type_hints(cls)
    return tuple(_field(field.name, hints[field.name]) for field in fields(cls))


def _field(name: str, hint: Any) -> _Field:
    is_optional = get_origin(hint) in (Union, types.UnionType)
    if is_optional:
        (hint,) = (part for part in get_args(hint) if part is not types.NoneType)
    if hint is str:
        return _Field(name, is_optional, _put_text, functools.partial(_check_text, name))
    if get_origin(hint) is Literal:
        return _Field(
            name, is_optional, functools.partial(_put_literal, hint), functools.partial(_literal, hint)
        )
    if is_dataclass(hint):
        cls: Any = hint
        return _Field(name, is_optional, _put_record, functools.partial(read, cls))
    if get_origin(hint) is tuple:
        item = _field(name, get_args(hint)[0])
        put = _put_records if is_dataclass(get_args(hint)[0]) else _put_items
        return _Field(name, is_optional, put, functools.partial(_items, name, item.take))
    assert hint in (int, bool, float, bytes), f"{name} has a type that no message has: {hint}"
    return _Field(name, is_optional, setattr, lambda value: value)


def _put_text(message: Any, name: str, text: str) -> None:
    setattr(message, name, _text(name, text))


def _text(name: str, text: str) -> str:
    if name in _REASONS and len(text) > MAX_TEXT:
        text = text[: MAX_TEXT - 1] + "…"
    # Exceptions may have file names in their texts that are not Unicode.
    text = text.encode(errors="backslashreplace").decode()
    return _check_text(name, text[:MAX_TEXT] if name in _REASONS else text)


def _check_text(name: str, text: str) -> str:
    most = N_BYTES.get(name)
    if most is not None and len(text.encode()) > most:
        raise ValueError(f"has {len(text.encode())} bytes; {most} at most")
    if len(text) > MAX_TEXT:
        raise ValueError(f"has {len(text)} characters; {MAX_TEXT} at most")
    return text


def _put_record(message: Any, name: str, part: Any) -> None:
    target = getattr(message, name)
    target.SetInParent()
    fill(target, part)


def _put_records(message: Any, name: str, parts: Sequence[Any]) -> None:
    _check_count(name, len(parts))
    target = getattr(message, name)
    for part in parts:
        fill(target.add(), part)


def _put_items(message: Any, name: str, items: Sequence[Any]) -> None:
    _check_count(name, len(items))
    getattr(message, name).extend(_text(name, item) if isinstance(item, str) else item for item in items)


def _items(name: str, take: Callable[[Any], Any], items: Sequence[Any]) -> tuple[Any, ...]:
    _check_count(name, len(items))
    return tuple(take(item) for item in items)


def _check_count(name: str, count: int) -> None:
    most = N_ITEMS[name]
    if count > most:
        raise ValueError(f"has {count} items; {most} at most")


def _put_literal(hint: Any, message: Any, name: str, value: str) -> None:
    setattr(message, name, numbers_of(hint)[value])


def _literal(hint: Any, number: int) -> str:
    for value, known in numbers_of(hint).items():
        if known == number:
            return value
    raise ValueError(f"has the unknown value {number}; install the same version of softs-fast on both sides")


@functools.cache
def numbers_of(hint: Any) -> dict[str, int]:
    """Return the number of each value of a Literal: values of the enumeration have the name of it in front."""
    values = get_args(hint)
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
        named = {
            value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number
        }
        if set(named) == set(values):
            return named
    raise AssertionError(f"no enumeration of the wire has the values {values}")
