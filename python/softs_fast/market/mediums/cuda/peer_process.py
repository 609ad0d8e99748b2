"""Identity and liveness of other processes, safe against reused process numbers."""

from __future__ import annotations

from .... import _core
from .slot_ticket import Process

__all__ = ["is_alive", "this_process"]


def this_process() -> Process:
    """Return the calling process."""
    return Process(*_core.this_process())


def is_alive(process: Process) -> bool:
    """Return whether a process still runs; what cannot be determined counts as alive."""
    return _core.is_alive(process.pid, process.start, process.pid_namespace)
