"""Handles that belong to the process that made them: a fork has neither their threads nor their connections."""

from __future__ import annotations

import os

from ..errors import ForkedError

__all__ = ["check_process"]


def check_process(pid: int, what: str) -> None:
    """Raise ForkedError unless this process made a handle.

    Args:
        pid: Process that made it.
        what: Name of the handle, for the text.

    Raises:
        ForkedError: This is a fork of that process.
    """
    if os.getpid() != pid:
        raise ForkedError(
            f"{what} belongs to process {pid}, which made it, and this is a fork of it: make one in the process that uses it"
        )
