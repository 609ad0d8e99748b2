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
from .output import say

__all__ = ["Terminal"]

# The other screen, without a cursor; lines are not wrapped.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Terminal:
    """Standard output as a screen, from `__enter__` to `__exit__`; what was there before comes back."""

    def __enter__(self) -> Terminal:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._before = signal.signal(signal.SIGWINCH, self._resized)
        say(_ENTER, end="")
        return self

    def __exit__(self, *args: object) -> None:
        # It may be gone by now.
        with contextlib.suppress(BrokenPipeError, SoftsError):
            say(_LEAVE, end="")
        signal.signal(signal.SIGWINCH, self._before)
        os.close(self._reader)
        os.close(self._writer)

    def size(self) -> tuple[int, int]:
        """Columns and lines; 80 and 24 where the terminal does not know."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns or 80, size.lines or 24

    def show(self, lines: Sequence[str]) -> None:
        """Replace the screen, without flicker."""
        body = "\r\n".join(line + _END_OF_LINE for line in lines)
        say(_HOME + body + _END_OF_SCREEN, end="")

    def pause(self, until_s: float) -> bool:
        """Sleep until that time of `time.monotonic`; True at once when the size of the terminal changes."""
        ready, _, _ = select.select([self._reader], [], [], max(until_s - time.monotonic(), 0.0))
        if not ready:
            return False
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        return True

    def _resized(self, number: int, frame: FrameType | None) -> None:
        # A full pipe wakes as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"r")
