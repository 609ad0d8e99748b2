"""When a flow in which no call ends says so. No clock, no thread."""

from __future__ import annotations

__all__ = ["Watchdog"]


class Watchdog:
    """Reports a quiet time, again after intervals that double, and anew when something has ended in between.

    Args:
        after_s: seconds of quiet before the first report.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._since_s: float | None = None
        self._gap_s = after_s
        self._due_s = 0.0

    def is_due(self, since_s: float | None, now_s: float) -> bool:
        """Return whether there is something to report now.

        Args:
            since_s: Time since which no call has ended while work remains; None: it is not quiet.
            now_s: Current time.
        """
        self._observe(since_s)
        if since_s is None or now_s < self._due_s:
            return False
        self._gap_s *= 2
        self._due_s = now_s + self._gap_s
        return True

    def wait_s(self, since_s: float | None, now_s: float) -> float:
        """Return after how many seconds to look again; what is not quiet now may be so right after."""
        self._observe(since_s)
        if since_s is None:
            return self._after_s
        return max(min(self._due_s - now_s, self._gap_s), 0.0)

    def _observe(self, since_s: float | None) -> None:
        if since_s != self._since_s:
            self._since_s = since_s
            self._gap_s = self._after_s
            self._due_s = (since_s or 0.0) + self._after_s
