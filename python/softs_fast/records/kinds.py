"""The two kinds of values: written by name, and written by position."""

from __future__ import annotations

from typing import Any, TypeVar, dataclass_transform

import msgspec
from msgspec import field
from msgspec.structs import replace

from ..errors import WireError
from .paths import named

__all__ = ["Message", "Record", "checked", "field", "from_plain", "plain", "replace"]

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _Frozen(msgspec.StructMeta):
    """Makes classes of values frozen, which msgspec asks each class to say again."""

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **config: Any) -> Any:
        return super().__new__(cls, name, bases, space, **{"frozen": True, **config})


class Record(msgspec.Struct, metaclass=_Frozen):
    """A frozen value that is written by name; names that a later version adds are left out."""


class Message(msgspec.Struct, metaclass=_Frozen, array_like=True, forbid_unknown_fields=True):
    """A frozen value that is written by position; those of a union of kinds have a `tag` in front.

    One that is a field of others has no defaults, so that it too has all of its items.
    """


def plain(value: object) -> Any:
    """Return a value as lists, tuples, dicts, numbers, texts and bytes."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=False)


def from_plain(kind: Any, found: object) -> Any:
    """Return the value that `plain` took apart, or anything else did.

    Raises:
        WireError: it is none of this kind; the text names the field.
    """
    try:
        return msgspec.convert(found, kind, builtin_types=(bytes,))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(named(kind, str(error))) from None


def checked(value: _Value) -> _Value:
    """Return a value that was made here, not read.

    Raises:
        WireError: a field breaks its bounds.
    """
    try:
        from_plain(type(value), plain(value))
    except (TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"{type(value).__name__}: {error}") from None
    return value
