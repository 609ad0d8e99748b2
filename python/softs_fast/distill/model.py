"""Models and their generations: their names, and the encoding of their configurations. Pure: no I/O, no clock.

A generation is one use of `set_model`. The samples of a generation are a product of the market, one for each student
rank, so that no sample of one generation can be taken for another's. A worker serves all of them with one pattern, and
learns the model of a generation from the control channel.
"""

from __future__ import annotations

import hashlib
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ConfigError, WireError

__all__ = [
    "DIGEST_BYTES",
    "MAX_MODEL_CFG_BYTES",
    "NO_MODEL",
    "PATTERN",
    "Generation",
    "Model",
    "check_model_id",
    "check_rank",
    "decode_model_cfg",
    "encode_model_cfg",
    "parse_product",
    "product_of",
]

#: Largest size of an encoded model_cfg: a message of the wire without its other fields.
MAX_MODEL_CFG_BYTES = (1 << 20) - (4 << 10)
#: Length of `Model.digest`.
DIGEST_BYTES = 16
#: Matches the products of all generations but 0, which means that there is no model yet.
PATTERN = "gen/[1-9][0-9]*/[0-9]+"


@dataclass(frozen=True, eq=False)
class Model:
    """A model as it was set.

    Args:
        generation: number of the use of `set_model`; 0: there was none yet.
        model_id: its name.
        model_cfg: its configuration, as passed to `set_model`.
        encoded_cfg: the same as msgpack.
    """

    generation: int
    model_id: str = ""
    model_cfg: dict[str, Any] | None = None
    encoded_cfg: bytes = b""

    @property
    def digest(self) -> bytes:
        """Return what tells it from other models in another run, where generations have other numbers."""
        model_id = self.model_id.encode()
        text = b"%d:%b%b" % (len(model_id), model_id, self.encoded_cfg)
        return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


#: Before the first `set_model`.
NO_MODEL = Model(0)


class Generation(NamedTuple):
    """The generation and the rank in a product id.

    Attributes:
        number: number of the generation.
        rank: rank of the student that gets the samples.
    """

    number: int
    rank: int


def product_of(generation: int, rank: int) -> str:
    """Return the product id of a generation's samples for one student."""
    return f"gen/{generation}/{rank}"


def parse_product(product_id: str) -> Generation | None:
    """Return generation and rank of a product id; None for an id that `product_of` does not make."""
    match = _PRODUCT.fullmatch(product_id)
    return None if match is None else Generation(int(match[1]), int(match[2]))


def check_model_id(model_id: object) -> str:
    """Return a valid model id.

    Raises:
        ConfigError: it is no string, empty, longer than 256 bytes of UTF-8, or has control characters.
    """
    if not isinstance(model_id, str):
        raise ConfigError(f"model_id must be a string, got {type(model_id).__name__}")
    try:
        n_bytes = len(model_id.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"model_id {model_id[:32]!r} has no UTF-8: {error}") from None
    if not 1 <= n_bytes <= _MAX_MODEL_ID_BYTES:
        raise ConfigError(
            f"model_id must have 1 to {_MAX_MODEL_ID_BYTES} bytes of UTF-8, {model_id[:32]!r} has {n_bytes}"
        )
    if _CONTROL.search(model_id):
        raise ConfigError(f"model_id must have no control characters, got {model_id!r}")
    return model_id


def check_rank(student_rank: object) -> int:
    """Return a valid rank of a student.

    Raises:
        ConfigError: it is no whole number from 0 to 65535.
    """
    if (
        not isinstance(student_rank, numbers.Integral)
        or isinstance(student_rank, bool)
        or not 0 <= int(student_rank) < _MAX_RANK
    ):
        raise ConfigError(
            f"student_rank must be a whole number from 0 to {_MAX_RANK - 1}, got {student_rank!r}"
        )
    return int(student_rank)


def encode_model_cfg(model_cfg: Mapping[str, Any] | None) -> bytes:
    """Return a configuration as msgpack; other mappings and sequences (Hydra's) become maps and arrays.

    Raises:
        ConfigError: it is no mapping, something in it has no msgpack form, or it is too long.
        ImportError: msgpack is not installed.
    """
    import msgpack

    if model_cfg is None:
        return b""
    if not isinstance(model_cfg, Mapping):
        raise ConfigError(f"model_cfg must be a dict or None, got {type(model_cfg).__name__}")
    try:
        encoded: bytes = msgpack.packb(model_cfg, default=_plain, use_bin_type=True)
    except Exception as error:  # also exceptions of a mapping class of the user's
        raise ConfigError(
            f"model_cfg cannot be encoded: {error}; need text, numbers, bytes, None, and lists and dicts of them"
        ) from None
    if len(encoded) > MAX_MODEL_CFG_BYTES:
        raise ConfigError(
            f"model_cfg has {len(encoded)} bytes when encoded, at most {MAX_MODEL_CFG_BYTES}; send the path of a file"
        )
    return encoded


def decode_model_cfg(encoded: bytes) -> dict[str, Any] | None:
    """Return the configuration that `encode_model_cfg` encoded; tuples have become lists.

    Raises:
        WireError: it is not a msgpack map.
        ImportError: msgpack is not installed.
    """
    import msgpack

    if not encoded:
        return None
    try:
        model_cfg = msgpack.unpackb(encoded, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack's exceptions have no common base
        raise WireError(f"model_cfg of {len(encoded)} bytes cannot be decoded: {error!r}") from None
    if model_cfg is not None and not isinstance(model_cfg, dict):
        raise WireError(f"model_cfg must be a map, got {type(model_cfg).__name__}")
    return model_cfg


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    # Numbers of numpy; an int comes here only if it is too large.
    if isinstance(value, numbers.Integral) and not isinstance(value, int):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, int):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no msgpack form")


_MAX_MODEL_ID_BYTES = 256
_MAX_RANK = 1 << 16
# A generation has 64 bits.
_PRODUCT = re.compile(r"gen/(0|[1-9][0-9]{0,19})/(0|[1-9][0-9]{0,4})", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
