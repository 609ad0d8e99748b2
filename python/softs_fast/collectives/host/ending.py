"""The end of a group in shared memory, from any thread, while calls are pending."""

from __future__ import annotations

import threading

from softs_fast import _kernels
from softs_fast.errors import PeerLost


class Ending:
    """Ends all calls of a group, also of one that is only about to be joined."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why = ""
        self._group: _kernels.Group | None = None

    def of(self, group: _kernels.Group) -> None:
        """Take a group, before its first call.

        Raises:
            PeerLost: it was ended already.
        """
        with self._lock:
            if self._why:
                raise PeerLost(self._why)
            self._group = group

    def end(self, reason: str) -> None:
        """End all pending calls of the group on all ranks, and those that follow; a second call does nothing."""
        with self._lock:
            self._why = self._why or reason
            if self._group is not None:
                self._group.end(reason)
            self._group = None

    def close(self) -> None:
        """Release the group; a second call does nothing."""
        with self._lock:
            self._group = None
