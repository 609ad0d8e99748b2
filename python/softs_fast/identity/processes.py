"""Processes by number, start and pid namespace, so that a number that the kernel uses again is another process."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from .. import _core

__all__ = ["Process", "State", "state_of", "this_process"]

#: What a process does.
State = Literal["running", "stopped", "traced", "ended"]


class Process(NamedTuple):
    """A process of one machine.

    Attributes:
        pid: Number of the process in its namespace.
        started: Time at which it started, in ticks since the boot.
        namespace: Inode of its pid namespace.
    """

    pid: int
    started: int
    namespace: int

    def is_alive(self) -> bool:
        """Return whether it runs; where that cannot be determined, True."""
        try:
            return _core.is_alive(*self)
        except OverflowError:
            # No process has such numbers; they come from elsewhere.
            return False


def this_process() -> Process:
    """Return the calling process.

    Raises:
        SegmentError: /proc cannot be read.
    """
    return _process(os.getpid())


def state_of(pid: int) -> State:
    """Return the state of a process of this pid namespace.

    Args:
        pid: Number of a process, which need not exist any more.

    Returns:
        "stopped": by a signal; "traced": stopped by a debugger; "ended": it does not exist, or is a zombie.
    """
    try:
        # The state follows the name, which is in parentheses and may contain some itself.
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return "ended"
    return _STATES.get(state, "running")


@lru_cache(maxsize=1)
def _process(pid: int) -> Process:
    # Reading /proc takes longer than all else that a slot of a device needs; a fork has another number.
    return Process(*_core.this_process())


_STATES: dict[bytes, State] = {b"T": "stopped", b"t": "traced", b"Z": "ended", b"X": "ended"}
