"""Standard output; a failure ends a command with one line instead of a traceback."""

from __future__ import annotations

import os
import sys

from ..errors import SoftsError

__all__ = ["say"]


def say(text: str, end: str = "\n") -> None:
    """Write text to standard output, at once.

    Raises:
        BrokenPipeError: the reader has closed it.
        SoftsError: it cannot be written for another reason, such as a full disk.
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        # Python flushes standard output once more at its end; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise SoftsError(f"cannot write standard output: {error.strerror}") from None
