"""Bounds of numbers, texts and collections, for `Annotated`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from msgspec import Meta

__all__ = [
    "CUT",
    "NO_NUL",
    "U32",
    "Amount",
    "Count",
    "Finite",
    "Tag64",
    "as_number",
    "clip",
    "most",
    "shaped",
    "span",
]


def most(n: int, *, least: int = 0) -> Meta:
    """Bound the characters of a text, the bytes, or the items of a tuple or dict."""
    return Meta(min_length=least or None, max_length=n)


def span(low: float, high: float) -> Meta:
    """Bound a number; both ends are allowed. Integers beyond 64 bits with a sign cannot be bounds."""
    return Meta(ge=low, le=high)


def shaped(pattern: str) -> Meta:
    """Bound a text to those of which a regular expression matches the whole."""
    return Meta(pattern=rf"\A(?:{pattern})\Z")


def as_number(kind: Literal["fixed64", "uint64", "uint32", "int64", "int32", "sint64"]) -> Meta:
    """Choose the type of an integer for protobuf, which is uint64 otherwise; the bounds say which numbers it has."""
    return Meta(extra={"proto": kind})


#: Ids, steps, bytes.
Count = Annotated[int, span(0, (1 << 63) - 1)]
#: What has 32 bits on the wire.
U32 = Annotated[int, span(0, (1 << 32) - 1), as_number("uint32")]
#: A random number or a set of bits, of 64 bits; the wire bounds it.
Tag64 = Annotated[int, Meta(ge=0), as_number("fixed64")]
#: Neither infinite nor NaN, of which no comparison is true.
Finite = Annotated[float, span(-sys.float_info.max, sys.float_info.max)]
#: A time that has passed, a norm: finite, at least 0.
Amount = Annotated[float, span(0.0, sys.float_info.max)]
#: A text for people, which `Proto` cuts when it writes one that is too long.
CUT = Meta(extra={"cut": True})
#: A text that C and terminals read to its end.
NO_NUL = shaped(r"[^\0]*")


def clip(text: str, most: int) -> str:
    """Return the text as valid UTF-8, cut with an ellipsis if it is longer than `most` characters."""
    text = text[: most + 1].encode(errors="backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"
