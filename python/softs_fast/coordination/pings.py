"""Pings of HTTP/2: how both ends of a connection notice that the other one does not answer any more.

gRPC's own threads answer them, so a process that computes, or holds the GIL, is not taken for dead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["Pings"]

_Options = list[tuple[str, int]]


@dataclass(frozen=True)
class Pings:
    """How often, and how long an answer may take: a stopped peer is noticed after at most the sum of both.

    Attributes:
        every_s: seconds from one ping to the next.
        timeout_s: seconds that an answer may take.

    Raises:
        ConfigError: a number is not between 0.01 and 3600.
    """

    every_s: float = 1.0
    timeout_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("every_s", "timeout_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0.01 <= value <= 3600):
                raise ConfigError(f"{name} of pings is {value}; need 0.01 to 3600 s")

    def client_options(self) -> _Options:
        """Return the options of a channel."""
        timeout_ms = round(self.timeout_s * 1000)
        return [
            ("grpc.keepalive_time_ms", round(self.every_s * 1000)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            # Without it a connection on which data is under way is never given up.
            ("grpc.http2.ping_timeout_ms", timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def server_options(self) -> _Options:
        """Return the options of a server; it lets clients ping as often as they like."""
        return [
            *self.client_options(),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1),
            ("grpc.http2.max_ping_strikes", 0),
        ]
