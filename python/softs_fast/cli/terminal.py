"""A terminal that shows one screen after the other."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from ..errors import SoftsError
from .table import say

__all__ = ["Terminal"]

# The alternate screen, without a cursor; lines are not wrapped.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Terminal:
    """Standard output as a full screen, from `__enter__` to `__exit__`, which restores the old contents."""

    def __enter__(self) -> Terminal:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # Python runs handlers between two instructions of the main thread: one for a signal that comes just before
        # `select`, or to another thread, would run when `select` returns. The descriptor wakes `select` at once.
        self._before = signal.signal(signal.SIGWINCH, _take_note)
        self._woken_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        say(_ENTER, end="")
        return self

    def __exit__(self, *args: object) -> None:
        # The terminal may be gone by now.
        with contextlib.suppress(BrokenPipeError, SoftsError):
            say(_LEAVE, end="")
        signal.set_wakeup_fd(self._woken_before)
        signal.signal(signal.SIGWINCH, self._before)
        os.close(self._reader)
        os.close(self._writer)

    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 if the terminal does not report them."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns or 80, size.lines or 24

    def show(self, lines: Sequence[str]) -> None:
        """Replace the contents of the screen, without flicker."""
        body = "\r\n".join(line + _END_OF_LINE for line in lines)
        say(_HOME + body + _END_OF_SCREEN, end="")

    def pause(self, until_s: float) -> bool:
        """Wait until a time of `time.monotonic`; return True at once if a signal comes, as at a change of the size."""
        ready, _, _ = select.select([self._reader], [], [], max(until_s - time.monotonic(), 0.0))
        if not ready:
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        return True


def _take_note(number: int, frame: FrameType | None) -> None:
    """Do nothing: without a handler a signal would be ignored."""
