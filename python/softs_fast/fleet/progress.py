"""How far the start of workers is: one line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from types import TracebackType

__all__ = ["Progress"]

#: A start that takes longer shows how far it is, seconds.
_QUIET_S = 2.0
#: How often a line is written that replaces the one before, and one that stays.
_UPDATE_S, _LINE_S = 1.0, 10.0


class Progress:
    """Shows on standard error how many workers serve, for the time of a ``with`` block.

    Args:
        n_workers: number of workers that are to start.
        clock: Monotonic time, seconds.
    """

    def __init__(self, n_workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._n_workers = n_workers
        self._clock = clock
        self._began = clock()
        self._show_at = self._began + _QUIET_S
        self._is_open = False

    def __call__(self, n_serving: int) -> None:
        """Show the number of workers that serve, if it is time."""
        now = self._clock()
        if now < self._show_at:
            return
        # Workers start where standard error is closed, or its reader has ended.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            text = f"{n_serving} of {self._n_workers} workers serve after {now - self._began:.0f} s"
            self._is_open = sys.stderr.isatty()
            self._show_at = now + (_UPDATE_S if self._is_open else _LINE_S)
            print(
                f"\r{text}" if self._is_open else text,
                end="" if self._is_open else "\n",
                file=sys.stderr,
                flush=True,
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the line on the terminal."""
        if self._is_open:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(file=sys.stderr, flush=True)
