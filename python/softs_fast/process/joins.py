"""Waits for the end of a thread that a signal can interrupt."""

from __future__ import annotations

import threading

__all__ = ["join"]

#: A signal is handled at the latest after this time, seconds.
_SLICE_S = 1.0


def join(thread: threading.Thread) -> None:
    """Wait until a thread has ended, as long as it takes.

    In slices: a signal that arrives just before the main thread waits for a lock, or in another thread, does not wake
    it, and Python would run the handler only at the end of the wait.
    """
    while thread.is_alive():
        thread.join(_SLICE_S)
