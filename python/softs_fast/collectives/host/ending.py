"""The end of a group in shared memory, from any thread, while calls are pending."""

from __future__ import annotations

import threading

from softs_fast import _kernels
from softs_fast.errors import PeerLost

# No process has this number, so that nothing watches one.
_NO_PROCESS = (-1, 0)


class Ending:
    """Ends all calls of a group: it marks every other rank as one that gave up, for which no rank waits any more.

    A pending call holds the lock of its group, and ends only if a rank that it waits for has come or gone. So this has
    the group's memory mapped once more for each other rank, and writes that rank's mark there. Nothing is written before
    the end, and nothing but marks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why = ""
        self._staging_bytes = 0
        self._size = 0
        self._others: dict[int, _kernels.Segment] = {}

    def open(self, offer: bytes, rank: int, size: int, staging_bytes: int) -> None:
        """Map the memory of a group.

        Args:
            offer: of the memory; its descriptor is still open.
            rank: this process's number.
            size: number of ranks.
            staging_bytes: of the group.

        Raises:
            PeerLost: it was ended already.
            SegmentError: the memory cannot be mapped.
        """
        with self._lock:
            if self._why:
                raise PeerLost(self._why)
            self._size, self._staging_bytes = size, staging_bytes
            self._others = {
                other: _kernels.Segment.open_group(offer, size, staging_bytes)
                for other in range(size)
                if other != rank
            }

    def end(self, why: str) -> None:
        """End all pending calls of the group on all ranks, and those that follow; a second call does nothing."""
        with self._lock:
            self._why = self._why or why
            processes = [_NO_PROCESS] * self._size
            for other, segment in self._others.items():
                marked = _kernels.Group(other, processes, segment, self._staging_bytes, 1.0)
                marked.give_up(why)
            self._others.clear()

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        with self._lock:
            self._others.clear()
