"""What the thread of a flow is doing; any thread may read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Doing"]

_OUTSIDE = "is in the code of the caller"


class Doing:
    """What the thread that runs a flow does, and since when.

    Attributes:
        now: Text of what the thread does, and since when, by `time.monotonic`.
        inside_s: Time at which the thread entered the flow; None: it is in the code of its caller.
    """

    def __init__(self) -> None:
        self.now = (_OUTSIDE, time.monotonic())
        self.inside_s: float | None = None

    @contextmanager
    def flow(self) -> Iterator[None]:
        """The thread is in the flow."""
        outer = self.inside_s
        if outer is None:
            self.inside_s = time.monotonic()
        try:
            yield
        finally:
            self.inside_s = outer
            if outer is None:
                self.now = (_OUTSIDE, time.monotonic())

    @contextmanager
    def what(self, text: str) -> Iterator[None]:
        """The thread does one thing, as "runs reward.score"."""
        before = self.now[0]
        self.now = (text, time.monotonic())
        try:
            yield
        finally:
            self.now = (before, time.monotonic())
