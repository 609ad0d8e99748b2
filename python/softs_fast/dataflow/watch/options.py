"""What a flow is told about deadlines, reports and traces."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import ConfigError

__all__ = ["OnStall", "WatchOptions"]

OnStall = Literal["warn", "abort"]


@dataclass(frozen=True)
class WatchOptions:
    """See the arguments of `Flow`.

    Raises:
        ConfigError: a number is not above 0, or a word is unknown.
    """

    deadline_s: float | None = None
    watchdog_s: float | None = 60.0
    on_stall: OnStall = "warn"
    trace: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("deadline_s", "watchdog_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value:g}; it is above 0, or None")
        if self.on_stall not in ("warn", "abort"):
            raise ConfigError(f'on_stall is {self.on_stall!r}; need "warn" or "abort"')
        if self.on_stall == "abort" and self.watchdog_s is None:
            raise ConfigError('on_stall="abort" needs watchdog_s: without it nothing is noticed')
