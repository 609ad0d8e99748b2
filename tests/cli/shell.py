"""Runs the command as a shell does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from waiting import WATCHDOG_S

#: Runs the command in the process of the test, to its end: status, output, errors.
Run = Callable[..., tuple[object, str, str]]


class Command:
    """Runs ``softs-fast``."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start it; it ends with the test at the latest."""
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "softs_fast", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "COLUMNS": "80", "PYTHONFAULTHANDLER": "1", **environment},
        )
        self.running.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Run it to its end: status, output, errors."""
        process = self.start(*arguments, **environment)
        out, errors = process.communicate(timeout=WATCHDOG_S)
        return process.returncode, out, errors

    def end(self, process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal as a terminal does, to the whole group, and wait: status, the rest of the output, errors."""
        os.killpg(process.pid, number)
        try:
            out, errors = process.communicate(timeout=WATCHDOG_S)
        except subprocess.TimeoutExpired:
            # It writes where its threads are.
            process.send_signal(signal.SIGABRT)
            raise AssertionError(f"{number!r} has not ended it: {process.communicate()[1]}") from None
        return process.returncode, out, errors
