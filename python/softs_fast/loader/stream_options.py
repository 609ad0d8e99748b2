"""How a dataset takes the samples of its streams."""

from __future__ import annotations

from dataclasses import dataclass

from .arguments import check_at_least, whole_number
from .ranks import checked_ranks
from .wait_policy import WAIT_MS

__all__ = ["StreamOptions"]


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How a dataset takes its samples; checked when it is made.

    Attributes:
        max_failures: Orders that may fail in a row before iteration raises, after a second at least; None: any
            number.
        first_wait_ms: Milliseconds until a wait first checks whether the product has changed, see `WaitPolicy`.
        num_slots, ...: The same as for `SoftIterableDataset`.

    Raises:
        ConfigError: a number is out of range.
    """

    num_slots: int
    retry_delay: float
    request_timeout: float | None
    zero_copy: bool
    ordered: bool
    prefetch: int | None
    debug: bool
    rank: int | None
    world_size: int | None
    max_failures: int | None = None
    first_wait_ms: int = WAIT_MS

    def __post_init__(self) -> None:
        """Check the ranges."""
        whole_number("num_slots", self.num_slots, 1)
        check_at_least("retry_delay", self.retry_delay, 0)
        if self.request_timeout is not None:
            check_at_least("request_timeout", self.request_timeout, 0)
        if self.prefetch is not None:
            whole_number("prefetch", self.prefetch, 1)
        checked_ranks(self.rank, self.world_size)
