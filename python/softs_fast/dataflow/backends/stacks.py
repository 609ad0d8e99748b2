"""Stacks of workers as their processes write them, in few words."""

from __future__ import annotations

import re

from ...errors import FlowError
from ..wire.links import MasterLink
from ..worker.stack import STACK

__all__ = ["frames_of", "innermost", "stack_of"]

#: Frames that a report shows, the innermost.
_MOST_FRAMES = 12
#: Frames that a line of text shows.
_FEW_FRAMES = 3
#: Characters of a frame.
_MOST_CHARACTERS = 200
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
#: The modules that call functions of a flow; what has called them is the same in each worker.
_OURS = "/softs_fast/dataflow/worker/"


def stack_of(link: MasterLink, worker: int, timeout_s: float) -> tuple[str, ...]:
    """Return where the Python code of a worker is, the innermost frame first, as "FILE:LINE FUNCTION".

    Args:
        link: Link to all workers.
        worker: Number of the worker.
        timeout_s: Time limit of the answer, in seconds.

    Returns:
        Otherwise one line that says why there is no stack.
    """
    try:
        text = link.ask(worker, STACK, timeout_s).decode(errors="replace")
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
