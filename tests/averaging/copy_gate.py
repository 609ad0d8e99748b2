"""Holds the thread that copies a snapshot."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from softs_fast.snapshots import Window


class Gate:
    """Holds the copy of the parameters into a window, which a thread makes, until it is opened."""

    def __init__(self, window: Window) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self._write = window.write
        window.write = self  # type: ignore[method-assign]

    def __call__(self, tensors: Mapping[str, Tensor]) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.reached.set()
            assert self.open.wait(30)
        self._write(tensors)
