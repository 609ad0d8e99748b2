"""Workers of other hosts that have left: how long another process with their number is awaited. No clock: times go in."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Returns"]

#: After so long in the flow, a worker that leaves has its first failure again, seconds.
_HEALTHY_S = 60.0


@dataclass
class _Worker:
    """What is known of one worker.

    Attributes:
        left_s: Time when the worker left; None: it is there.
        joined_s: Time when the worker was there again.
        n_failures: Number of failures in a row.
        reason: Text that says how the worker left.
        refusal: Reason why a process with its number could not begin.
    """

    left_s: float | None = None
    joined_s: float | None = None
    n_failures: int = 0
    reason: str = ""
    refusal: str = ""


@dataclass
class Returns:
    """Decides how long a worker that has left is awaited.

    Args:
        rejoin_timeout_s: How long another process may take to be there.
        max_failures: Number of failures in a row after which a worker is not awaited any more.
    """

    rejoin_timeout_s: float
    max_failures: int
    _workers: dict[int, _Worker] = field(default_factory=dict, init=False)

    def left(self, worker: int, reason: str, now_s: float) -> None:
        """A worker has left. A process that leaves before it has made its roles changes nothing."""
        one = self._workers.setdefault(worker, _Worker())
        if one.left_s is not None:
            return
        if one.joined_s is not None and now_s - one.joined_s >= _HEALTHY_S:
            one.n_failures = 0
        one.left_s, one.reason, one.refusal = now_s, reason, ""
        one.n_failures += 1

    def joined(self, worker: int, now_s: float) -> None:
        """A worker is there, and has made its roles."""
        one = self._workers.setdefault(worker, _Worker())
        one.left_s, one.joined_s = None, now_s

    def refused(self, worker: int, reason: str) -> None:
        """A process with the number of a worker could not begin; another one may."""
        self._workers.setdefault(worker, _Worker()).refusal = reason

    def is_awaited(self, worker: int, now_s: float) -> bool:
        """Return whether a worker is there, or may be again."""
        return not self.why(worker, now_s) and self.rejoin_timeout_s > 0

    def why(self, worker: int, now_s: float) -> str:
        """Return why a worker is not awaited any more; empty if it is, or is there."""
        one = self._workers.get(worker)
        if one is None or one.left_s is None or self.rejoin_timeout_s == 0:
            return ""
        if one.n_failures > self.max_failures:
            return f"{one.reason}; that was failure {one.n_failures} in a row, and max_restarts is {self.max_failures}"
        if now_s - one.left_s < self.rejoin_timeout_s:
            return ""
        refusal = f"; the last that tried could not begin: {one.refusal}" if one.refusal else ""
        return f"{one.reason}; no other process has begun with its number within {self.rejoin_timeout_s:g} s (rejoin_timeout_s){refusal}"

    def clear(self) -> None:
        """All workers are there."""
        self._workers.clear()
