"""Whether a flow drops groups and gets no further: a filter that keeps nothing would run as long as the source. Pure."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DropWatch"]

#: As many groups as these steps have may be dropped within one step before the flow says so.
_MOST_STEPS = 10


class DropWatch:
    """Counts the groups that were dropped since the last step was complete.

    Args:
        groups_per_step: Groups that a step needs.
    """

    def __init__(self, groups_per_step: int) -> None:
        self._per_step = groups_per_step
        self._complete = 0
        self._before: dict[str, int] = {}
        self._due = _MOST_STEPS * groups_per_step

    def observe(self, complete: int, dropped: Mapping[str, int]) -> str | None:
        """Return what to say, first when ten steps of groups were dropped within a step, then whenever they have doubled.

        Args:
            complete: Steps that are complete.
            dropped: Groups that were dropped since the flow began, by reason.
        """
        if complete != self._complete:
            self._complete, self._before = complete, dict(dropped)
            self._due = _MOST_STEPS * self._per_step
        if sum(dropped.values()) - sum(self._before.values()) < self._due:
            return None
        self._due *= 2
        return (
            f"step {complete + 1} is not complete: {self.since(dropped)}, and a step needs {self._per_step}; check the "
            "function that drops them, or give the flow other rows"
        )

    def since(self, dropped: Mapping[str, int]) -> str:
        """Return how many groups were dropped since the last step was complete, with the reasons; empty if there are none."""
        counts = {reason: n - self._before.get(reason, 0) for reason, n in dropped.items()}
        reasons = ", ".join(f"{n} {reason}" for reason, n in counts.items() if n)
        return (
            f"{sum(counts.values())} groups were dropped since step {self._complete} ({reasons})"
            if reasons
            else ""
        )
