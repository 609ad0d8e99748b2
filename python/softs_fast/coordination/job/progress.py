"""Which members stand still. That alone evicts none of them: a step may be slow for a good reason."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Of an epoch.

    Attributes:
        steps: Latest step that each seat has begun, by seat.
        top: Greatest of these steps.
        top_since_s: Time at which the first seat began that step.
        named: Seats that an alarm has named since they last moved.
    """

    steps: dict[int, int] = field(default_factory=dict)
    top: int = 0
    top_since_s: float = 0.0
    named: set[int] = field(default_factory=set)

    def note(self, now_s: float, seat: int, step: int) -> None:
        """Note that a seat has begun a step."""
        if step <= self.steps.get(seat, 0):
            return
        self.steps[seat] = step
        self.named.discard(seat)
        if step > self.top:
            self.top, self.top_since_s = step, now_s

    def behind(self) -> list[int]:
        """Return the seats that have not begun the greatest step, and were not named."""
        return [seat for seat in sorted(self.steps) if self.steps[seat] < self.top and seat not in self.named]

    def name_stalled(self, now_s: float, stalled_after_s: float) -> list[int]:
        """Return the seats that have been behind for so long, once."""
        if now_s < self.top_since_s + stalled_after_s:
            return []
        stalled = self.behind()
        self.named.update(stalled)
        return stalled

    @property
    def spread(self) -> int:
        """Steps between the first and the last seat."""
        return self.top - min(self.steps.values(), default=self.top)
