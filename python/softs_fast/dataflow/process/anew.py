"""Replaces this process by the program that it was begun as: its number stays, and all else of it is freed."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

__all__ = ["Program", "say_last"]

logger = logging.getLogger(__name__)

#: How long processes of `multiprocessing` may take to end after SIGTERM, seconds.
_END_S = 1.0
#: How long what is logged and printed last may take, seconds.
_SAY_S = 1.0
#: Signals that arrive while the new program begins; it takes them when it has its handlers.
_KEPT = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Program:
    """How this process was begun; made before it has opened anything.

    A launcher goes on to see one process, with its number, its signals and its exit status. The kernel frees memory and
    devices: descriptors that this process has opened are closed, those that it was given stay.

    Args:
        is_anew: whether this process has begun anew; then signals that have arrived meanwhile are taken now.
    """

    def __init__(self, *, is_anew: bool) -> None:
        if is_anew:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _KEPT)
        self._arguments = [sys.executable, *sys.orig_argv[1:]]
        self._folder = os.getcwd()
        self._environment = dict(os.environ)
        self._given = {number for number in _descriptors() if _is_inheritable(number)}

    def begin_anew(self, environment: Mapping[str, str]) -> NoReturn:
        """Begin anew, at once. Any thread may call; nothing of this process is ended in order but child processes.

        Args:
            environment: Variables that the program gets beside its first environment.
        """
        for child in multiprocessing.active_children():
            child.terminate()
            child.join(_END_S)
            child.kill()
        say_last(_flush)
        for number in _descriptors() - self._given:
            with contextlib.suppress(OSError):
                os.set_inheritable(number, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT)
        os.chdir(self._folder)
        os.execve(sys.executable, self._arguments, {**self._environment, **environment})


def say_last(text: Callable[[], object]) -> None:
    """Log or print something last, unless that takes long: a thread that does not return may hold the lock for it.

    Args:
        text: Function that logs or prints.
    """
    saying = threading.Thread(target=text, name="softs-flow-say", daemon=True)
    saying.start()
    saying.join(_SAY_S)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stdout.flush()
        sys.stderr.flush()


def _descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _is_inheritable(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:
        return False  # that of the folder, which is closed
