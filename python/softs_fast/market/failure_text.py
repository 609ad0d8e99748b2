"""What students read of a function that failed: its name and file, and its own part of the traceback."""

from __future__ import annotations

import functools
import inspect
import threading
import traceback
from pathlib import Path
from typing import Any

__all__ = ["own_traceback", "place_of", "raised_at"]

#: Lines of a traceback, and the longest one, characters.
_N_LINES, _MAX_LINE = 10, 300
#: What lies between a worker's thread and the user's function.
_PACKAGE = Path(__file__).parents[1]
_OURS = (f"{_PACKAGE}/market/", f"{_PACKAGE}/distill/", threading.__file__)


def place_of(function: Any) -> str:
    """Return name, file and line of a function, also of a method, a partial or an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    # An object that can be called has no code of its own.
    code = getattr(function if hasattr(function, "__code__") else type(function).__call__, "__code__", None)
    return name if code is None else f"{name} in {code.co_filename}, line {code.co_firstlineno}"


def own_traceback(error: BaseException) -> str:
    """Return the traceback of an exception in at most ten lines, without the frames that lead to the user's function.

    Of a longer one, the first frame and the last ones are shown; of a cause, its type and text.
    """
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, frame in enumerate(frames) if not frame.filename.startswith(_OURS)), 0)
    shown = [_lines_of(frame) for frame in frames[first:]]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    tail = traceback.format_exception_only(error)
    if cause is not None:
        tail += ["caused by ", *traceback.format_exception_only(cause)]
    tail_lines = "".join(tail).splitlines()[: _N_LINES // 2]
    n_room = (_N_LINES - 1 - len(tail_lines)) // 2
    if len(shown) > n_room:
        n_last = max(1, (_N_LINES - 1 - len(tail_lines) - 3) // 2)
        shown = [
            shown[0],
            [f"  ({len(shown) - 1 - n_last} more frames are in the worker's log)"],
            *shown[-n_last:],
        ]
    lines = ["Traceback (most recent call last):", *(line for one in shown for line in one), *tail_lines]
    return "\n".join(line[:_MAX_LINE] for line in lines)


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """Return file and line at which an exception was raised; None if it has no traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def _lines_of(frame: traceback.FrameSummary) -> list[str]:
    place = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    return [place, f"    {frame.line}"] if frame.line else [place]
