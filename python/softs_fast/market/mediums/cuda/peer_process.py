"""Identity and liveness of other processes, safe against reused process numbers."""

from __future__ import annotations

import os

from .slot_ticket import Process

__all__ = ["is_alive", "this_process"]


def this_process() -> Process:
    """Return the calling process."""
    _, start = _status("self")
    return Process(os.getpid(), start, os.stat("/proc/self/ns/pid").st_ino)


def is_alive(pid: int, start: int) -> bool:
    """Return whether a process of our namespace still runs; a zombie does not."""
    try:
        state, started = _status(pid)
    except OSError:
        return False
    return started == start and state not in "ZX"


def _status(pid: int | str) -> tuple[str, int]:
    """Return state and start of a process, the third and the 22nd field of /proc/PID/stat.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field is a name in parentheses, and may contain parentheses itself.
        fields = file.read().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ProcessLookupError(f"process {pid} has no status")
    return fields[0].decode("ascii"), int(fields[19])
