"""What a new process gets, of any size: in memory of its own, and not through the pipe of `multiprocessing`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

__all__ = ["Passed"]


class Passed:
    """A value for a process that is started by `multiprocessing`, which gets the value itself.

    `multiprocessing` writes what a process gets into a pipe, and holds the end that is read until all is written. So
    what is larger than a pipe (64 KiB) is waited for without end if the process is killed before it has read it.

    Args:
        value: whatever `multiprocessing` can pass on, locks and queues too.
    """

    def __init__(self, value: object) -> None:
        self._value = value
        self._file = os.memfd_create("softs-fleet")

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        """Write the value to the memory, which the process inherits."""
        with open(self._file, "wb", closefd=False) as file:
            ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self._value)
        return _load, (DupFd(self._file),)

    def __enter__(self) -> Passed:
        return self

    def __exit__(self, *args: object) -> None:
        """Close the memory; the process has been started."""
        os.close(self._file)


def _load(inherited: Any) -> Any:
    with open(inherited.detach(), "rb") as file:
        file.seek(0)  # the position is that of the process which has written
        return pickle.load(file)
