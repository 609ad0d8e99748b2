"""What the code of a user has raised, as text that can be sent, logged and printed, whatever the exception does.

An exception is foreign code: its `__str__` may raise or exit, and its text may have surrogates or 100 MB. No function here
raises, and each text has at most `MOST_TEXT` characters, all of which UTF-8 has.
"""

from __future__ import annotations

import threading
import traceback

__all__ = ["MOST_TEXT", "is_ctrl_c", "reason_of_error", "safe_text", "text_of_error", "trace_of_error"]

#: Characters of the longest text of an exception. Of a longer one the middle is left out: begin and end say most.
MOST_TEXT = 1 << 15


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether an exception means that the user has interrupted this process.

    Python raises KeyboardInterrupt for Ctrl-C in the main thread alone. In another one, the code there has raised it.
    """
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def reason_of_error(error: BaseException) -> str:
    """Return what an exception says of itself, or the name of its type if that is nothing."""
    return safe_text(_said(error) or type(error).__name__)


def text_of_error(error: BaseException) -> str:
    """Return type and text of an exception, in the form of a traceback's last line."""
    said = _said(error)
    return safe_text(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def trace_of_error(error: BaseException) -> str:
    """Return type, text and traceback of an exception, with its causes."""
    try:
        trace = "".join(traceback.format_exception(error)).rstrip()
    except BaseException as other:
        trace = f"no traceback: its text raised {type(other).__name__}"
    return safe_text(trace)


def safe_text(text: str) -> str:
    """Return text without lone surrogates, and without the middle of what is longer than `MOST_TEXT`."""
    # Cut first, so that 100 MB are not copied; a lone surrogate then becomes six characters.
    return _cut(_cut(text).encode(errors="backslashreplace").decode())


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as other:  # foreign code: sys.exit is as possible as ValueError
        return f"no text: its __str__ raised {type(other).__name__}"


def _cut(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text[:]
    left_out = f"\n... the middle of {len(text)} characters is left out ...\n"
    half = (MOST_TEXT - len(left_out)) // 2
    return text[:half] + left_out + text[-half:]
