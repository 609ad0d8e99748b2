"""How long the parts of a call took."""

from __future__ import annotations

__all__ = ["CallTimes"]


class CallTimes:
    """Seconds of each step of a call by its name; of a step with several workers, those of the slowest one."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[int, float]] = {}

    def add(self, name: str, ticket: int, seconds: float) -> None:
        """A worker's part has ended.

        Args:
            name: Name of the hook, or of the part of a main step.
            ticket: Ticket of the step.
            seconds: Seconds that the worker's part took.
        """
        steps = self._steps.setdefault(name, {})
        steps[ticket] = max(steps.get(ticket, 0.0), seconds)

    def by_name(self) -> dict[str, float]:
        """Return the sum over steps of one name."""
        return {name: sum(steps.values()) for name, steps in self._steps.items()}
