"""What can be seen of a worker process from outside: its state in /proc, its stack, and what its native thread answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from ...errors import FlowError
from ...identity import state_of
from ..link.stream import MasterStream
from ..master.order.deadlines import Seen
from ..process.stack import STACK

__all__ = ["Sight", "frames_of", "innermost", "inside_of", "look_at", "sights_of", "stack_of", "stopped"]

#: How long a native thread may take to answer before it is said not to answer, seconds. It computes nothing.
_ANSWER_S = 1.0

_STATES = {"stopped": "stopped by a signal (state T)", "traced": "stopped by a debugger (state t)"}
#: Frames that a report shows, the innermost.
_MOST_FRAMES = 12
#: Frames that a line of text shows.
_FEW_FRAMES = 3
#: Characters of a frame.
_MOST_CHARACTERS = 200
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
#: The modules that call functions of a flow; what has called them is the same in each worker.
_OURS = "/softs_fast/dataflow/process/"


@dataclass(frozen=True)
class Sight:
    """What a worker is inside of.

    Attributes:
        pid: Process id of the worker.
        inside: Name of the function or hook; empty if the worker waits for orders, or nothing is known.
        ticket: Ticket of the step; 0 without one.
        seconds: Time that this has lasted, in seconds.
        state: Further text: that the worker is stopped, or waits within the step.
        is_known: Whether the worker has answered.
        stack: Frames of its Python code, the innermost first; empty if that was not asked.
    """

    pid: int
    inside: str = ""
    ticket: int = 0
    seconds: float = 0.0
    state: str = ""
    is_known: bool = True
    stack: tuple[str, ...] = ()


def sights_of(
    link: MasterStream,
    pids: Mapping[int, int],
    here: Iterable[int],
    timeout_s: float,
    *,
    stacks: bool = False,
) -> dict[int, Sight]:
    """Return what each worker is inside of; one that does not answer is said to.

    Args:
        link: Link to all workers.
        pids: Process ids, by number of the worker.
        here: Workers with processes on this host.
        timeout_s: Time limit of all answers together, in seconds.
        stacks: Whether to ask those that are inside of something where their Python code is.
    """
    found, end_s = {}, time.monotonic() + timeout_s
    for worker, pid in sorted(pids.items()):
        state = stopped(pid) if worker in here else ""
        if state:
            found[worker] = Sight(pid, state=state, is_known=False)
            continue
        try:
            inside = inside_of(link, worker, _left_s(end_s))
        except FlowError:
            found[worker] = Sight(pid, state="does not answer", is_known=False)
            continue
        found[worker] = Sight(
            pid,
            str(inside.get("name", "")),
            int(inside.get("ticket", 0)),
            float(inside["seconds"]),
            f"waits for {inside['waits']}" if "waits" in inside else "",
            stack=stack_of(link, worker, _left_s(end_s)) if stacks and "ticket" in inside else (),
        )
    return found


def _left_s(end_s: float) -> float:
    """Return how long one more worker may take: those that come late get little, so that one does not hide the others."""
    return max(end_s - time.monotonic(), 0.05)


def look_at(link: MasterStream, worker: int, pid: int | None) -> Seen:
    """Return what is seen of a worker; a process that is stopped is not asked.

    Args:
        link: Link to all workers.
        worker: Number of the worker.
        pid: Process id of the worker, if it is on this host.
    """
    standing = stopped(pid) if pid is not None else ""
    if standing:
        return Seen(standing, answers=False)
    try:
        inside = inside_of(link, worker, _ANSWER_S)
    except FlowError:
        # It may have been stopped just now.
        return Seen(stopped(pid) if pid is not None else "", answers=False)
    where = innermost(stack_of(link, worker, _ANSWER_S)) if "ticket" in inside else ""
    return Seen(inside=inside.get("ticket"), waits=str(inside.get("waits", "")), where=where)


def inside_of(link: MasterStream, worker: int, timeout_s: float) -> dict[str, Any]:
    """Return what a worker says it is inside of, and for how long.

    Raises:
        FlowError: it does not answer in time, or has left.
    """
    published = link.ask(worker, "inside", timeout_s)
    inside = msgpack.unpackb(published.value)
    if not isinstance(inside, dict):
        raise FlowError(f"worker {worker} answers 'inside' with a {type(inside).__name__}")
    # By the clock of the worker, which may be on another host.
    return inside | {"seconds": inside["seconds"] + published.age_s}


def stopped(pid: int) -> str:
    """Return in words how a process stands still; empty if it does not, or has ended.

    Args:
        pid: Process id, of a process of this host.
    """
    return _STATES.get(state_of(pid), "")


def stack_of(link: MasterStream, worker: int, timeout_s: float) -> tuple[str, ...]:
    """Return where the Python code of a worker is, the innermost frame first, as "FILE:LINE FUNCTION".

    Args:
        link: Link to all workers.
        worker: Number of the worker.
        timeout_s: Time limit of the answer, in seconds.

    Returns:
        Otherwise one line that says why there is no stack.
    """
    try:
        text = link.ask(worker, STACK, timeout_s).value.decode(errors="replace")
    except FlowError as error:
        return (_printable(f"no stack: {error}"[:_MOST_CHARACTERS]),)
    return frames_of(text)


def frames_of(text: str) -> tuple[str, ...]:
    """Return the frames of a stack as `faulthandler` writes it, or its first line if it has none.

    Args:
        text: Text that a worker has answered; not trusted.
    """
    found = [match for match in map(_FRAME.fullmatch, text.splitlines()) if match is not None]
    if not found:
        first = text.splitlines()[0] if text else "no stack: nothing was written"
        return (_printable(first[:_MOST_CHARACTERS]),)
    ours = [i for i, match in enumerate(found) if _OURS in match["file"]]
    # A function that waits in the worker itself, as for weights, is shown from there.
    shown = found[: ours[0]] if ours and ours[0] > 0 else found
    return tuple(
        _printable(f"{match['file']}:{match['line']} {match['name']}") for match in shown[:_MOST_FRAMES]
    )


def innermost(frames: tuple[str, ...]) -> str:
    """Return the innermost frames in one line; empty without any."""
    return ", called from ".join(frames[:_FEW_FRAMES])


def _printable(text: str) -> str:
    """Return the end of a text, which cannot steer a terminal."""
    return "".join(one if one.isprintable() else "?" for one in text)[-_MOST_CHARACTERS:]
