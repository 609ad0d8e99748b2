"""How long a worker that leaves waits for the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition

__all__ = ["Patience", "wait_until_left"]

#: For the others to end their step, and for a connection that has ended to be made again.
_LEAVE_S, _AWAY_S = 10.0, 1.0
# Waits look for signals this often.
_TICK_S = 0.1


class Patience:
    """Decides when to stop waiting. No clock: the time is an argument.

    Args:
        now_s: Time at which the wait begins.
    """

    def __init__(self, now_s: float) -> None:
        self._end_s = now_s + _LEAVE_S
        self._away_since_s: float | None = None

    def lasts(self, now_s: float, is_connected: bool) -> bool:
        """Return whether to wait on.

        Args:
            now_s: Present time.
            is_connected: Whether there is a connection to the coordinator.
        """
        if is_connected:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = now_s
        is_away = self._away_since_s is not None and now_s >= self._away_since_s + _AWAY_S
        return now_s < self._end_s and not is_away


def wait_until_left(
    changed: Condition, is_leaving: Callable[[], bool], is_connected: Callable[[], bool]
) -> None:
    """Wait until a worker has left, or its coordinator is gone; with the lock.

    Args:
        changed: Notified when something of the worker changes.
        is_leaving: Whether the worker has not left yet.
        is_connected: Whether there is a connection to the coordinator.
    """
    patience = Patience(time.monotonic())
    while is_leaving() and patience.lasts(time.monotonic(), is_connected()):
        changed.wait(_TICK_S)
