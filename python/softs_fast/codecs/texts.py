"""Codecs by their texts, as they stand in configurations."""

from __future__ import annotations

import functools

from ..errors import ConfigError
from .custom import CustomCodec, made_by_name, registered_names, registered_text
from .encodings import Cast, Codec, Int8, TopK

__all__ = ["as_codec"]


def as_codec(codec: object) -> Codec | None:
    """Return a codec, or None where there is nothing to encode.

    Args:
        codec: a codec, None, or a text: `"exact"`, `"cast:DTYPE"`, `"int8"`, `"int8:BLOCK"`, `"int8:BLOCK:SCALE"`,
            `"topk:K"`, or `"NAME"` or `"NAME:PARAMETERS"` of a registered codec.

    Raises:
        ConfigError: anything else; the text lists the registered names.
    """
    if codec is None or isinstance(codec, Cast | Int8 | TopK):
        return codec
    if isinstance(codec, str):
        return _parsed(codec)
    if isinstance(codec, CustomCodec):
        return _parsed(registered_text(codec))
    raise _unknown(codec)


@functools.lru_cache(256)
def _parsed(text: str) -> Codec | None:
    kind, *fields = text.split(":")
    match kind, fields:
        case "exact", []:
            return None
        case "cast", [dtype]:
            return Cast(dtype)
        case "int8", []:
            return Int8()
        case "int8", [block]:
            return Int8(_number(text, block))
        case "int8", [block, scale]:
            return Int8(_number(text, block), scale)
        case "topk", [k]:
            return TopK(_number(text, k))
    name, _, parameters = text.partition(":")
    if (custom := made_by_name(name, parameters)) is not None:
        return custom
    raise _unknown(text)


def _unknown(codec: object) -> ConfigError:
    return ConfigError(
        f"unknown codec {codec!r}; need one such as exact, cast:bfloat16, int8:128, int8:128:float16 or topk:64, or a "
        f"registered one: {', '.join(registered_names()) or 'none is'}"
    )


def _number(codec: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"codec {codec!r}: {text!r} is no whole number") from None
