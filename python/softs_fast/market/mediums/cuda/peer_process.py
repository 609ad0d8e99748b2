"""Identity and liveness of other processes, safe against reused process numbers."""

from __future__ import annotations

import os
from functools import lru_cache

from .... import _core
from .slot_ticket import Process

__all__ = ["is_alive", "this_process"]


def this_process() -> Process:
    """Return the calling process."""
    return _process(os.getpid())


def is_alive(process: Process) -> bool:
    """Return whether a process still runs; what cannot be determined counts as alive."""
    return _core.is_alive(process.pid, process.start, process.pid_namespace)


@lru_cache(maxsize=1)
def _process(pid: int) -> Process:
    # /proc is read for it, which takes longer than everything else that a slot needs; a fork has another number.
    return Process(*_core.this_process())
