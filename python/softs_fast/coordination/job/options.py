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

#: Shorter waits than a step and a round trip take would end each epoch before its members could answer.
_LEAST_WAIT_S = 0.05


@dataclass(frozen=True)
class JobOptions:
    """Of a job.

    Attributes:
        name: Name of the job; workers of another job are refused.
        min_workers: Smallest number of members of an epoch.
        max_workers: Largest number of members. If it equals `min_workers`, the job has a fixed size and waits for each
            seat.
        multiple_of: Number that divides the number of members.
        block_size: Seats that belong together, such as the ranks of a sharded model: 0 to block_size - 1, block_size to
            2 block_size - 1, ... An epoch has all seats of a block or none.
        max_spares: Most workers that may wait without a seat.
        blink_s: Seconds for which a connection may be away before its epoch ends.
        away_s: Seconds for which a seat is kept for a worker that is away while other workers wait for a seat. None:
            `blink_s` if the size may vary, else the longer of that and 10.
        form_timeout_s: Seconds for which a table waits for further workers: the first table from when there are enough,
            a later one from the end of the epoch before. At least 0.05.
        join_s: Seconds for which an open epoch waits for more new workers, once one is ready, before it ends to admit them.
        settle_s: Seconds for which a member that leaves outside of a step waits for others to end theirs.
        rejoin_timeout_s: Seconds for which the job lives with too few members.
        reconnect_timeout_s: Seconds for which a restarted coordinator waits for the members of the open epoch.
        stalled_after_s: Seconds after which a seat that is a step behind the others is named in an alarm. At least 0.05.
        evict_stalled: Whether such a seat is also taken from its worker.
        lost_after_s: Seconds for which a process waits until the connection of another one with its name or its seat has
            ended; pings take so long to find a dead peer.
        max_restarts: Most restarts of one seat within `restart_window_s`, however each process has ended; None for no
            limit.
        restart_window_s: Seconds in which `max_restarts` are counted.

    Raises:
        ConfigError: a value is out of range, or no number of members fits min_workers, max_workers, multiple_of and
            block_size.
    """

    name: str
    min_workers: int
    max_workers: int
    multiple_of: int = 1
    block_size: int = 1
    max_spares: int = 64
    blink_s: float = 0.05
    away_s: float | None = None
    form_timeout_s: float = 10.0
    join_s: float = 1.0
    settle_s: float = 1.0
    rejoin_timeout_s: float = 600.0
    reconnect_timeout_s: float = 10.0
    stalled_after_s: float = 300.0
    evict_stalled: bool = False
    lost_after_s: float = 3.0
    max_restarts: int | None = None
    restart_window_s: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_TEXT:
            raise ConfigError(f"name of a job has {len(self.name)} characters; need 1 to {MAX_TEXT}")
        for name, least, most in (
            ("min_workers", 1, MAX_SEATS),
            ("max_workers", self.min_workers, MAX_SEATS),
            ("multiple_of", 1, MAX_SEATS),
            ("block_size", 1, MAX_SEATS),
            ("max_spares", 0, MAX_SEATS),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} of the job is {value}; need {least} to {most}")
        if self.max_restarts is not None and not self.max_restarts >= 0:
            raise ConfigError(f"max_restarts of the job is {self.max_restarts}; need 0 or more, or None")
        for name, least_s in (
            ("blink_s", 0.0),
            ("form_timeout_s", _LEAST_WAIT_S),
            ("join_s", 0.0),
            ("settle_s", 0.0),
            ("rejoin_timeout_s", 0.0),
            ("reconnect_timeout_s", 0.0),
            ("stalled_after_s", _LEAST_WAIT_S),
            ("lost_after_s", 0.0),
            ("restart_window_s", 0.0),
        ):
            value = getattr(self, name)
            if not (value >= least_s and math.isfinite(value)):
                raise ConfigError(f"{name} of the job is {value}; need seconds, {least_s:g} or more")
        if self.away_s is not None and not (self.away_s >= self.blink_s and math.isfinite(self.away_s)):
            raise ConfigError(f"away_s of the job is {self.away_s}; need blink_s ({self.blink_s}) or more")
        if self.largest(self.max_workers) == 0:
            raise ConfigError(
                f"no job has {self.min_workers} to {self.max_workers} members in multiples of {self.step} "
                f"(multiple_of {self.multiple_of}, block_size {self.block_size})"
            )

    @cached_property
    def step(self) -> int:
        """The number of members is a multiple of it."""
        return math.lcm(self.multiple_of, self.block_size)

    @cached_property
    def n_seats(self) -> int:
        """Seats that there are."""
        return self.largest(self.max_workers)

    @cached_property
    def is_fixed(self) -> bool:
        """Whether only one number of members is possible."""
        return self.n_seats - self.step < self.min_workers

    @cached_property
    def kept_s(self) -> float:
        """How long a seat is kept for a worker that is away."""
        if self.away_s is not None:
            return self.away_s
        return max(10.0, self.blink_s) if self.is_fixed else self.blink_s

    def largest(self, n: int) -> int:
        """Return how many of n workers can be members; 0 if there are too few."""
        n = min(n, self.max_workers) // self.step * self.step
        return n if n >= self.min_workers else 0
