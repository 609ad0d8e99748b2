"""What can be seen of a worker process from outside: its state in /proc, and what its native thread answers."""

from __future__ import annotations

from typing import Any

import msgpack

from ...errors import FlowError
from ..order.deadlines import Seen
from ..wire.links import MasterLink

__all__ = ["inside_of", "look_at", "stopped"]

#: How long a native thread may take to answer before it is said not to answer, seconds. It computes nothing.
_ANSWER_S = 1.0

_STATES = {"T": "stopped by a signal (state T)", "t": "stopped by a debugger (state t)"}


def look_at(link: MasterLink, worker: int, pid: int | None) -> Seen:
    """Return what is seen of a worker; a process that is stopped is not asked.

    Args:
        link: to all workers.
        worker: its number.
        pid: its process, if it is on this host.
    """
    standing = stopped(pid) if pid is not None else ""
    if standing:
        return Seen(standing, answers=False)
    try:
        inside = inside_of(link, worker, _ANSWER_S)
    except FlowError:
        # It may have been stopped just now.
        return Seen(stopped(pid) if pid is not None else "", answers=False)
    return Seen(inside=inside.get("ticket"), waits=str(inside.get("waits", "")))


def inside_of(link: MasterLink, worker: int, timeout_s: float) -> dict[str, Any]:
    """Return what a worker says it is inside of.

    Raises:
        FlowError: it does not answer in time, or has left.
    """
    inside = msgpack.unpackb(link.ask(worker, "inside", timeout_s))
    if not isinstance(inside, dict):
        raise FlowError(f"worker {worker} answers 'inside' with a {type(inside).__name__}")
    return inside


def stopped(pid: int) -> str:
    """Return in words how a process stands still; empty if it does not, or has ended.

    Args:
        pid: of a process of this host.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    # The state follows the name, which is in parentheses and may have some itself.
    return _STATES.get(text.rpartition(")")[2].split()[0], "")
