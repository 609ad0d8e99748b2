"""Which ranks have come to which call, and which are missing. No clock, no socket."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import WireError

__all__ = ["Attendance"]


class Attendance:
    """What rank 0 knows of the calls of all ranks.

    Args:
        size: number of ranks.
        most_ahead: pieces that a rank may send before rank 0 has taken them.
    """

    def __init__(self, size: int, most_ahead: int) -> None:
        #: The call to which each rank has come, and the last piece that came of it.
        self._came = [(0, -1)] * size
        #: Pieces that rank 0 has not taken.
        self._n_waiting = [0] * size
        self._most_ahead = most_ahead
        self._awaited: tuple[int, ...] = ()
        self._awaited_piece = 0
        #: The last call in which all take part, and why there is none after it.
        self._last: int | None = None
        self._why = ""

    def came(self, rank: int, sequence: int, piece: int) -> None:
        """Note a piece of a rank.

        Raises:
            WireError: it is older than the one before, skips a call, or too many wait.
        """
        present, last = self._came[rank]
        if (sequence, piece) <= (present, last) or sequence > present + 1 or (sequence > present and piece):
            raise WireError(
                f"rank {rank} sent piece {piece} of call {sequence} after piece {max(last, 0)} of call {present}; "
                "calls and pieces are sent once, and in their order"
            )
        if self._n_waiting[rank] >= self._most_ahead:
            raise WireError(
                f"rank {rank} sent {self._n_waiting[rank] + 1} pieces that rank 0 has not taken; {self._most_ahead} at most"
            )
        self._came[rank] = (sequence, piece)
        self._n_waiting[rank] += 1

    def taken(self, rank: int) -> None:
        """Note that rank 0 has taken a piece of a rank."""
        self._n_waiting[rank] -= 1

    def begins(self, sequence: int) -> None:
        """Note that rank 0 has come to a call."""
        self._came[0] = (sequence, -1)
        self._awaited = ()

    def awaits(self, piece: int, ranks: Iterable[int]) -> None:
        """Note for which ranks rank 0 waits in its call."""
        self._awaited, self._awaited_piece = tuple(ranks), piece

    def leaves(self, last: int, reason: str) -> None:
        """Note that a rank takes part in no call after `last`."""
        if self._last is None or last < self._last:
            self._last, self._why = last, reason

    def over(self) -> str:
        """Return why a call to which a rank has come cannot be made; empty if all can."""
        most = max(sequence for sequence, _ in self._came)
        return self._why if self._last is not None and most > self._last else ""

    def missing(self, sequence: int) -> list[int]:
        """Return the ranks for which a call waits. If none is late, it is rank 0 that does not go on."""
        absent = [rank for rank, (present, _) in enumerate(self._came) if present < sequence]
        if absent:
            return absent
        wanted = (sequence, self._awaited_piece)
        return [rank for rank in self._awaited if self._came[rank] < wanted] or [0]
