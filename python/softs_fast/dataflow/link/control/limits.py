"""What the two ends of a control stream are limited to."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import ConfigError

__all__ = ["ControlLimits"]

#: Bytes of the largest frame that can be asked for.
_MOST_FRAME = 1 << 30


@dataclass(frozen=True)
class ControlLimits:
    """Limits of one end. Of the two sizes of a frame the smaller one holds for both directions.

    Attributes:
        frame_bytes: bytes of one message; of a published value 17 bytes less.
        unsent_bytes: bytes that may wait for one peer that does not read. A single message always may.
        unread_bytes: bytes of one peer that may wait for `receive`; beyond them its connection is not read.
        workers: workers that may be joined at the same time; of a master.
        handshake_s: seconds from connecting to joining.
        lost_after_s: seconds without a sign of life after which a worker on another host has left; of a master.

    Raises:
        ConfigError: a number is out of its range.
    """

    frame_bytes: int = 1 << 20
    unsent_bytes: int = 64 << 20
    unread_bytes: int = 64 << 20
    workers: int = 4096
    handshake_s: float = 10.0
    lost_after_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1024 <= self.frame_bytes <= _MOST_FRAME:
            raise ConfigError(f"frame_bytes must be 1024 to {_MOST_FRAME}, have {self.frame_bytes}")
        for name in ("unsent_bytes", "unread_bytes", "workers"):
            if not 1 <= getattr(self, name) < 1 << 48:
                raise ConfigError(f"{name} must be at least 1, have {getattr(self, name)}")
        for name in ("handshake_s", "lost_after_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, have {getattr(self, name)}")

    def native(self) -> tuple[int, int, int, int, float]:
        """Return the numbers as the native module takes them."""
        return (self.frame_bytes, self.unsent_bytes, self.unread_bytes, self.workers, self.handshake_s)
