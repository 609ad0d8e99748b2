"""What the HTTP layer says of requests, for peers that have proven nothing: each kind of line once in a while, with a count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["LOG", "Sparse"]

_EVERY_S = 10.0


class Sparse(logging.Filter):
    """Lets a line of one kind pass once in ten seconds; the next one says how many have been left out.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        #: Time of the last line of each kind, and how many were left out since. Kinds are texts of the code, so they are few.
        self._last: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        now_s = self._clock()
        last_s, n = self._last.get(str(record.msg), (now_s - _EVERY_S, 0))
        is_due = now_s >= last_s + _EVERY_S
        self._last[str(record.msg)] = (now_s, 0) if is_due else (last_s, n + 1)
        if is_due and n:
            record.msg = f"{record.msg} ({n} more in {now_s - last_s:.0f} s)"
        return is_due


#: For requests of peers that have not proven anything.
LOG = logging.getLogger("softs_fast.paramserver.http")
LOG.addFilter(Sparse())
