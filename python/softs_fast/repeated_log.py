"""Log records that repeat: the first one whole, then how many there were."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["RepeatedLog", "relay_log"]

#: How often a repeated record is counted in the log, seconds.
_PERIOD_S = 10.0
#: Records that are known at a time; the oldest are dropped.
_MAX_KNOWN = 64


@dataclass
class _Known:
    level: int
    line: str
    since: float
    n: int = 0


class RepeatedLog:
    """Passes records on to a logger, those with one key at most every 10 s.

    Args:
        logger: Logger that gets the records.
        clock: Monotonic time, seconds.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}

    def log(self, level: int, key: Hashable, text: str, error: BaseException | None = None) -> None:
        """Log a record, or count it if one with its key was logged less than 10 s ago.

        Args:
            level: Level of `logging`.
            key: Key of the records that are counted as one.
            text: Text of the record; counts have its first line.
            error: Exception that the first record shows with its traceback.
        """
        now = self._clock()
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._tell(self._known.pop(next(iter(self._known))), now)
            self._known[key] = _Known(level, text.partition("\n")[0], now)
            self._logger.log(level, "%s", text, exc_info=error)
            return
        known.n += 1
        if now - known.since >= _PERIOD_S:
            self._tell(known, now)

    def relay(self, level: int, text: str) -> None:
        """Log a record of a native part.

        Those of failures, of bad requests, and of peers that are not there, that differ in numbers alone are counted as one.
        """
        if level >= logging.WARNING and (" failed" in text or text.startswith(("no ", "bad request"))):
            self.log(level, re.sub(r"\d+", "", text.partition("\n")[0]), text)
        else:
            self._logger.log(level, "%s", text)

    def flush(self) -> None:
        """Log the counts that were not logged yet; afterwards all records are new."""
        now = self._clock()
        while self._known:
            self._tell(self._known.popitem()[1], now)

    def _tell(self, known: _Known, now: float) -> None:
        if known.n:
            self._logger.log(
                known.level, "%s (%d more in the last %.1f s)", known.line, known.n, now - known.since
            )
        known.n, known.since = 0, now


def relay_log(
    next_record: Callable[[], tuple[int, str] | None], logger: logging.Logger, name: str
) -> threading.Thread:
    """Start a thread that passes the records of a native part to a logger.

    Args:
        next_record: Function that waits for the next record, its level and text, in native code; None ends the thread.
        logger: Logger that gets the records.
        name: Name of the thread.
    """

    def pass_on() -> None:
        log = RepeatedLog(logger)
        while (record := next_record()) is not None:
            log.relay(*record)
        log.flush()

    thread = threading.Thread(target=pass_on, name=name, daemon=True)
    thread.start()
    return thread
