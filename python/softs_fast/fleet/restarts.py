"""When a worker that has failed is started again. Decisions only: no clock, no process."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy", "Restarts"]


@dataclass(frozen=True)
class RestartPolicy:
    """How often, and after which pauses, a worker is started again.

    Args:
        max_restarts: failures in a row after which it is not started again.
        first_pause_s: the pause after the first failure, seconds; each further one doubles it.
        longest_pause_s: the longest pause.
        sound_s: a worker that has served for so long begins to count anew.
    """

    max_restarts: int = 5
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    sound_s: float = 60.0


class Restarts:
    """The failures in a row of one worker."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.n_failures = 0

    def pause_after(self, served_s: float) -> float | None:
        """Note a failure of a worker that had served for `served_s` seconds.

        Returns:
            Seconds until it starts again; None: it has failed too often.
        """
        policy = self._policy
        if served_s >= policy.sound_s:
            self.n_failures = 0
        self.n_failures += 1
        if self.n_failures > policy.max_restarts:
            return None
        # No pause is doubled so often that the power matters; a float has an end.
        return min(policy.first_pause_s * 2.0 ** min(self.n_failures - 1, 64), policy.longest_pause_s)
