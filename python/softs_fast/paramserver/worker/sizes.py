"""How long a part of an upload and a held request may be, from what the road has let pass so far."""

from __future__ import annotations

from ..wire.limits import MAX_PART_BYTES, MIN_PART_BYTES

__all__ = ["LEAST_PART_BYTES", "PartSizes", "PollWait"]

#: A part is to take so long: a refusal or a cut costs no more.
_PART_S = 2.0
#: A proxy that refuses even this much cannot be used.
LEAST_PART_BYTES = 4 << 10
_LEAST_WAIT_S = 1.0
#: Held requests that end well before a longer one is tried.
_WELL = 20


class PartSizes:
    """The length of the next part: about two seconds of the link.

    Args:
        first_bytes: Bytes of the first part.
        max_bytes: Bytes of a part that the server accepts.
    """

    def __init__(self, first_bytes: int, max_bytes: int = MAX_PART_BYTES) -> None:
        self._max_bytes = min(max_bytes, MAX_PART_BYTES)
        self._min_bytes = min(MIN_PART_BYTES, self._max_bytes)
        self.bytes = min(max(first_bytes, self._min_bytes), self._max_bytes)

    def limit(self, max_bytes: int) -> None:
        """No later part may be longer, as the server has announced."""
        self._max_bytes = min(self._max_bytes, max(max_bytes, 1))
        self._min_bytes = min(self._min_bytes, self._max_bytes)
        self.bytes = min(self.bytes, self._max_bytes)

    def passed(self, n: int, seconds: float) -> None:
        """A part of n bytes took so long; the next one is at most twice as long.

        Args:
            n: Bytes of the part.
            seconds: Seconds from its first byte to the answer.
        """
        wanted = int(n / max(seconds, 1e-6) * _PART_S)
        if n < self.bytes:
            # The last part of an upload is short, and tells more of the delay than of the rate.
            wanted = max(wanted, self.bytes)
        self.bytes = min(max(min(wanted, 2 * self.bytes), self._min_bytes), self._max_bytes)

    def refused(self, n: int) -> bool:
        """A part of n bytes was too long for the server or a proxy (413): no later one is longer than half of it.

        Returns:
            Whether a shorter one makes sense.
        """
        if n <= LEAST_PART_BYTES:
            return False
        self.limit(max(n // 2, LEAST_PART_BYTES))
        return True

    def cut(self) -> None:
        """A part was lost on the road: the next one is shorter, for now."""
        self.bytes = max(self.bytes // 2, self._min_bytes)


class PollWait:
    """How long the server may hold a request for weights.

    Args:
        max_wait_s: Seconds that the server allows.
    """

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._n_well = 0
        self.seconds = max_wait_s

    def ended(self) -> None:
        """A held request was answered."""
        self._n_well += 1
        if self._n_well >= _WELL and self.seconds < self._max_wait_s:
            self.seconds, self._n_well = min(2 * self.seconds, self._max_wait_s), 0

    def cut(self, held_s: float) -> None:
        """A held request was cut on the road.

        Args:
            held_s: seconds after it was sent; a cut in the first half of the wait has another cause.
        """
        if held_s >= self.seconds / 2:
            self.seconds, self._n_well = max(self.seconds / 2, min(_LEAST_WAIT_S, self._max_wait_s)), 0
