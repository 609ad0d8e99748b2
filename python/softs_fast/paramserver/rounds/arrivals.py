"""How long a round waits for slow workers: from the times at which pushes arrived in earlier rounds."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["MIN_GRACE_S", "Arrivals"]

#: A round with a quorum stays open so long at least, if members have not pushed yet.
MIN_GRACE_S = 1.0

#: Rounds that are remembered.
_ROUNDS = 20
#: Median absolute deviations above the median.
_DEVIATIONS = 4.0


class Arrivals:
    """Offsets of pushes from the opening of their rounds, of the last 20 rounds.

    A push that is too late for its round has an offset too, so a deadline that was too short grows.
    """

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, float, list[float]]] = deque(maxlen=_ROUNDS)

    def opened(self, number: int, now_s: float) -> None:
        """Note when the round of a version was opened."""
        self._rounds.append((number, now_s, []))

    def arrived(self, number: int, now_s: float) -> None:
        """Note a push for a version."""
        for version, opened_s, offsets in self._rounds:
            if version == number:
                offsets.append(max(0.0, now_s - opened_s))

    def deadline_s(self) -> float | None:
        """Return how long after its opening a round waits; None as long as no round has been closed.

        Source: median + 4 MAD, as wished for in learning-at-home/hivemind#676.
        """
        earlier = [offset for _, _, offsets in list(self._rounds)[:-1] for offset in offsets]
        if not earlier:
            return None
        middle = median(earlier)
        return middle + _DEVIATIONS * median(abs(one - middle) for one in earlier)
