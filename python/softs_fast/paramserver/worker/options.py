"""Options of a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ...errors import ConfigError
from ..wire.limits import MAX_PART_BYTES
from ..wire.messages import CodecName
from .sizes import LEAST_PART_BYTES

__all__ = ["WorkerOptions"]


@dataclass(frozen=True)
class WorkerOptions:
    """Options of a worker.

    Attributes:
        name: Name of this machine, for the server's page; "" for its host name.
        rejoin_timeout_s: Seconds that the server may be out of reach before the worker fails.
        url_file: File with the server's present URL, read when the old one leads elsewhere; for an invite, not for a place.
        ask_url: Function that asks a person for the URL and returns it, or None; called in the same case.
        proxy: URL of an HTTP proxy.
        push_codec: Codec of pushes; None: the one that the server says.
        top_k_fraction: Fraction of elements that the codec top_k keeps; None: the one that the server says.
        max_part_bytes: Bytes of a part of an upload, at most; None: as the server says.

    Raises:
        ConfigError: a value is out of range.
    """

    name: str = ""
    rejoin_timeout_s: float = 3600.0
    url_file: Path | None = None
    ask_url: Callable[[], str | None] | None = None
    proxy: str | None = None
    push_codec: CodecName | None = None
    top_k_fraction: float | None = None
    max_part_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.push_codec is not None and self.push_codec not in get_args(CodecName):
            raise ConfigError(
                f"push_codec of a worker is {self.push_codec!r}; expected {', '.join(get_args(CodecName))}"
            )
        if self.top_k_fraction is not None and not 0 < self.top_k_fraction <= 1:
            raise ConfigError(
                f"top_k_fraction of a worker is {self.top_k_fraction}; expected more than 0, at most 1"
            )
        if not self.rejoin_timeout_s > 0:
            raise ConfigError(
                f"rejoin_timeout_s of a worker is {self.rejoin_timeout_s}; expected more than 0"
            )
        if self.max_part_bytes is not None and not LEAST_PART_BYTES <= self.max_part_bytes <= MAX_PART_BYTES:
            raise ConfigError(
                f"max_part_bytes of a worker is {self.max_part_bytes}; expected {LEAST_PART_BYTES} to {MAX_PART_BYTES}"
            )
