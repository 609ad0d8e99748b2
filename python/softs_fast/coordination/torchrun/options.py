"""What torchrun's `--rdzv-conf` says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..credentials import ClientCredentials
from ..launcher import launched_seat

__all__ = ["AgentOptions"]

_FILES = ("cert", "key", "ca", "token")
_NAMES = ("seat", "worker_id", "timeout", *_FILES)


@dataclass(frozen=True)
class AgentOptions:
    """Of an agent.

    Attributes:
        seat: Number of its seat; None for any that is free.
        worker_id: Name of its worker; None for a name by its seat.
        timeout_s: How long it waits for an epoch.
        credentials: Credentials with which the agent proves what it is.
    """

    seat: int | None
    worker_id: str | None
    timeout_s: float
    credentials: ClientCredentials

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> AgentOptions:
        """Read them.

        Args:
            config: `seat`, `worker_id`, `timeout` (seconds), and the files `ca`, `cert`, `key` and `token`. Without
                `seat` it is the number that a launcher gave to the agent.

        Raises:
            ConfigError: a name is not known, or a value is malformed.
        """
        for name in config:
            if name not in _NAMES:
                raise ConfigError(f"--rdzv-conf has {name!r}; this backend knows {', '.join(_NAMES)}")
        seat, timeout = config.get("seat"), config.get("timeout", 900)
        if seat is not None and not str(seat).isdecimal():
            raise ConfigError(f"seat in --rdzv-conf is {seat!r}; need a whole number, 0 or more")
        try:
            timeout_s = float(timeout)
        except (TypeError, ValueError):
            timeout_s = math.nan
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ConfigError(f"timeout in --rdzv-conf is {timeout!r}; need seconds, more than 0")
        files = {name: Path(config[name]) for name in _FILES if config.get(name) is not None}
        worker_id = config.get("worker_id")
        return cls(
            launched_seat() if seat is None else int(seat),
            None if worker_id is None else str(worker_id),
            timeout_s,
            ClientCredentials(*map(files.get, _FILES)),
        )
