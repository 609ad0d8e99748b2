"""One worker of a fleet, as the fleet sees it: its process, its pipes, and how its last run ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Literal

from ..identity import this_process
from .fork_server import ForkServer, WorkerProcess
from .restarts import Restarts
from .threads import THREADS
from .worker_process import DRAIN, END, ENDED, FAILED, SERVES, serve

__all__ = ["Member", "State"]

#: A worker is "ending" when it serves no more and its process has not ended yet.
State = Literal["starting", "serving", "ending", "pausing", "ended", "given up"]
#: Lines of output that an error shows where there is no traceback.
_N_LAST_LINES = 20
_READ_BYTES = 1 << 16


class Member:
    """A worker process. Only the thread of the supervisor uses it, but for its state, which others may read.

    Args:
        name: precedes each line that it prints.
        make_worker: called in the process.
        environment: variables that are set there.
        restarts: decides whether it starts again.
    """

    def __init__(
        self, name: str, make_worker: Callable[[], Any], environment: Mapping[str, str], restarts: Restarts
    ) -> None:
        self.name = name
        self.state: State = "starting"
        #: How the last run failed.
        self.error = ""
        #: How the one that failed last has; it is kept when the process is started again.
        self.last_error = ""
        #: When that was: `time.monotonic()`.
        self.failed_at = 0.0
        self.restarts = restarts
        self.has_served = False
        #: Whether a signal has ended the last run.
        self.was_killed = False
        #: Whether it was told to end.
        self.is_ending = False
        # Its last run has said that its worker was stopped, by the leader for example.
        self._says_ended = False
        #: When it was started, when it began to serve, when it is to start again, or when it is to be killed:
        #: `time.monotonic()`.
        self.since = 0.0
        self._make_worker, self.environment = make_worker, dict(environment)
        self._last_lines: deque[str] = deque(maxlen=_N_LAST_LINES)
        self._unfinished = b""
        #: As `multiprocessing.Process`; None while it does not run.
        self.process: Any = None
        self.pipe: Connection | None = None
        self.output: Connection | None = None

    def start(self, now: float, server: ForkServer) -> None:
        """Start the process. Raises what `multiprocessing` raises, for example OSError where there is no memory.

        Args:
            now: `time.monotonic()`.
            server: Starts it.
        """
        self.pipe, pipe = multiprocessing.Pipe()
        self.output, output = multiprocessing.Pipe(duplex=False)
        self._last_lines.clear()
        self.state, self.error, self.since = "starting", "", now
        self._says_ended = False
        try:
            arguments = (self._make_worker, self.environment, this_process(), pipe, output)
            environment = os.environ | self.environment
            # Not a daemon: a teacher may have processes of its own, such as those of a DataLoader.
            process = WorkerProcess(
                server, environment, output.fileno(), serve, arguments, f"softs-{self.name}"
            )
            process.start()
        finally:
            pipe.close()
            output.close()
        self.process = process

    @property
    def threads(self) -> str:
        """With how many threads it computes; empty if neither the fleet nor the program says so."""
        return self.environment.get(THREADS, os.environ.get(THREADS, ""))

    @property
    def sources(self) -> list[Any]:
        """What to wait for: its messages, its output, its end."""
        ended = [] if self.process is None else [self.process.sentinel]
        return [one for one in (self.pipe, self.output) if one is not None] + ended

    def read_message(self, now: float) -> None:
        """Read what the process has sent: that it serves, or why it does not."""
        if self.pipe is None:
            return
        try:
            message = self.pipe.recv_bytes()
        except (EOFError, OSError):
            self._close("pipe")
            self._note_ending()
            return
        if message == SERVES:
            self.state, self.has_served, self.since = "serving", True, now
        elif message == ENDED:
            self._says_ended = True
            self._note_ending()
        elif message.startswith(FAILED):
            self.error = message.removeprefix(FAILED).decode()
            if self.state == "serving":
                # Clients may ask for the cause before the process has ended.
                self.last_error, self.failed_at = self.error, now
            self._note_ending()

    def _note_ending(self) -> None:
        if self.state == "serving":
            self.state = "ending"

    def read_output(self) -> None:
        """Print what the process has printed, line by line, with its name."""
        if self.output is None:
            return
        try:
            data = os.read(self.output.fileno(), _READ_BYTES)
        except OSError:
            data = b""
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if not data:
            self._close("output")
        if self._unfinished and (not data or len(self._unfinished) >= _READ_BYTES):
            lines, self._unfinished = [*lines, self._unfinished], b""
        for line in lines:
            # Of a line that was written again and again, as progress is, the last state.
            text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="backslashreplace")
            self._last_lines.append(text)
            # Workers go on where standard error is closed, or its reader has ended.
            with contextlib.suppress(OSError, ValueError):
                print(f"[{self.name}] {text}", file=sys.stderr, flush=True)

    def reap(self, now: float) -> bool:
        """Note that the process has ended; whether that was because its worker was stopped, after it had served."""
        process = self.process
        if process is None:
            return True
        process.join()
        while self.output is not None and self.output.poll():
            self.read_output()
        while self.pipe is not None and self.pipe.poll():
            self.read_message(now)
        self._close("pipe")
        self._close("output")
        self._note_ending()
        status = process.exitcode
        self.was_killed = status is not None and status < 0
        if status is not None:
            process.close()
        self.process = None
        if self._says_ended and status in (0, None):
            return True
        if not self.error:
            reason = _said_of(status)
            self.error = "\n".join([f"its process ended: {reason}", *self._last_lines])
        self.last_error, self.failed_at = self.error, now
        return False

    def end(self, *, drains: bool = False) -> None:
        """Tell the process to end; one that makes its worker yet has nothing to end in good order.

        Args:
            drains: Whether the call that runs may go on for `DRAIN_S`.
        """
        if self.state == "starting":
            self.kill()
        if self.pipe is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self.pipe.send_bytes(DRAIN if drains else END)
        self._close("pipe")
        self._note_ending()

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self.process.kill()

    def _close(self, which: Literal["pipe", "output"]) -> None:
        connection: Connection | None = getattr(self, which)
        if connection is not None:
            connection.close()
            setattr(self, which, None)


def _said_of(status: int | None) -> str:
    """Return how a process ended."""
    if status is None:
        return "exit status unknown, since SIGCHLD is ignored or another part of this program waited for it"
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
