"""Waits for the end of a thread that a signal can interrupt."""

from __future__ import annotations

import math
import threading
import time

__all__ = ["join"]

#: A signal is handled at the latest after this time, seconds; an idle process wakes up as often.
_SLICE_S = 4.0


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait until a thread has ended, or for so many seconds; None for as long as it takes.

    In slices: a signal that arrives just before the main thread waits for a lock, or in another thread, does not wake
    it, and Python would run the handler only at the end of the wait.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while thread.is_alive() and (left_s := end_s - time.monotonic()) > 0:
        thread.join(min(left_s, _SLICE_S))
