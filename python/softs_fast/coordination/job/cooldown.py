"""Seats of which workers come and go: each entry ends the epoch of the others, so the next one waits ever longer."""

from __future__ import annotations

from dataclasses import dataclass, field

#: How long a seat cools down from its second entry in short time; it doubles with each further one.
_FIRST_S, _MOST_S = 2.0, 300.0
#: An entry so long after the one before is the first one of a series.
_FORGET_S = 2 * _MOST_S


@dataclass
class Cooldown:
    """Of all seats.

    Attributes:
        entries: Number of entries of a series and time of the last one, by seat.
        until_s: Ends of the times for which seats cool down, by seat; some may be past.
    """

    entries: dict[int, tuple[int, float]] = field(default_factory=dict)
    until_s: dict[int, float] = field(default_factory=dict)

    def enter(self, now_s: float, seat: int) -> int:
        """Note that a worker enters an epoch without having been in the one before; return which entry of a series it is."""
        n, last_s = self.entries.get(seat, (0, now_s))
        n = n + 1 if now_s - last_s < _FORGET_S else 1
        self.entries[seat] = (n, now_s)
        # The exponent is bounded: a float has no 2^1024.
        wait_s = min(_FIRST_S * 2.0 ** min(n - 2, 30), _MOST_S) if n > 1 else 0.0
        self.until_s = {other: until_s for other, until_s in self.until_s.items() if until_s > now_s}
        self.until_s[seat] = now_s + wait_s
        return n

    def left_s(self, now_s: float, seat: int) -> float:
        """Return the seconds for which a seat cools down yet; 0 if it does not."""
        return max(0.0, self.until_s.get(seat, now_s) - now_s)
