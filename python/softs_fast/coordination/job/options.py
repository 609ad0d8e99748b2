"""How large a job is, and how long the coordinator waits for what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ...errors import ConfigError

#: Seats of a job, at most.
MAX_SEATS = 4096

#: Length of names, addresses, paths and reasons of messages, at most.
MAX_TEXT = 4096


@dataclass(frozen=True)
class JobOptions:
    """Of a job.

    Attributes:
        name: Name of the job; workers of another job are refused.
        min_size: Least number of members of an epoch.
        max_size: Largest number of members of an epoch; if equal to `min_size`, the job has a fixed size and waits
            for each seat.
        unit: Number of which the number of members is a multiple.
        block: Number of seats that belong together, as the ranks of a sharded model do: 0 to block - 1, block to 2
            block - 1, ... An epoch has all of them or none.
        spares: Largest number of workers without a seat that may wait.
        blink_s: How long a connection may be away before its epoch ends.
        away_s: How long a seat is kept for a worker that is away while other workers wait for one. None: `blink_s` if
            the size may vary, else 10.
        window_s: How long a table waits for workers that could be members: the first one from when there are enough, a
            later one from the end of the epoch before.
        join_s: How long an open epoch waits for more new workers, once one is ready, before it ends for their sake.
        settle_s: How long a member that leaves outside of a step waits for others to end theirs.
        rejoin_s: How long the job lives with too few members.
        grace_s: How long a coordinator that was restarted waits for the members of the open epoch.
        stall_s: How long a seat may be a step behind the others before an alarm names it.
        evict_stalled: Whether a seat that an alarm names is taken away, too.
        lost_after_s: How long a process waits for the connection of another one to end that has its name or its seat:
            as long as pings take to find a dead one.
        restarts: Most restarts of one seat within `restarts_s`, however each process has ended; None for no limit.
        restarts_s: Period of `restarts`.

    Raises:
        ConfigError: a value is out of range, or no number of members fits min_size, max_size, unit and block.
    """

    name: str
    min_size: int
    max_size: int
    unit: int = 1
    block: int = 1
    spares: int = 64
    blink_s: float = 0.05
    away_s: float | None = None
    window_s: float = 10.0
    join_s: float = 1.0
    settle_s: float = 1.0
    rejoin_s: float = 600.0
    grace_s: float = 10.0
    stall_s: float = 300.0
    evict_stalled: bool = False
    lost_after_s: float = 3.0
    restarts: int | None = None
    restarts_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_TEXT:
            raise ConfigError(f"name of a job has {len(self.name)} characters; need 1 to {MAX_TEXT}")
        for name, least, most in (
            ("min_size", 1, MAX_SEATS),
            ("max_size", self.min_size, MAX_SEATS),
            ("unit", 1, MAX_SEATS),
            ("block", 1, MAX_SEATS),
            ("spares", 0, MAX_SEATS),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} of the job is {value}; need {least} to {most}")
        if self.restarts is not None and self.restarts < 0:
            raise ConfigError(f"restarts of the job is {self.restarts}; need 0 or more, or None")
        for name in (
            "blink_s",
            "window_s",
            "join_s",
            "settle_s",
            "rejoin_s",
            "grace_s",
            "stall_s",
            "lost_after_s",
            "restarts_s",
        ):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{name} of the job is {value}; need seconds, 0 or more")
        if self.away_s is not None and not (self.away_s >= self.blink_s and math.isfinite(self.away_s)):
            raise ConfigError(f"away_s of the job is {self.away_s}; need blink_s ({self.blink_s}) or more")
        if self.largest(self.max_size) == 0:
            raise ConfigError(
                f"no job has {self.min_size} to {self.max_size} members in multiples of {self.step} "
                f"(unit {self.unit}, block {self.block})"
            )

    @cached_property
    def step(self) -> int:
        """The number of members is a multiple of it."""
        return math.lcm(self.unit, self.block)

    @cached_property
    def n_seats(self) -> int:
        """Seats that there are."""
        return self.largest(self.max_size)

    @cached_property
    def is_fixed(self) -> bool:
        """Whether only one number of members is possible."""
        return self.n_seats - self.step < self.min_size

    @cached_property
    def kept_s(self) -> float:
        """How long a seat is kept for a worker that is away."""
        if self.away_s is not None:
            return self.away_s
        return max(10.0, self.blink_s) if self.is_fixed else self.blink_s

    def largest(self, n: int) -> int:
        """Return how many of n workers can be members; 0 if there are too few."""
        n = min(n, self.max_size) // self.step * self.step
        return n if n >= self.min_size else 0
