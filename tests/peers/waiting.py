"""How tests wait: one time limit, one loop, free ports, and one reader of a child's lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: What must happen happens within this, or the test hangs; it is never what a test measures. A machine that is slow or
#: loaded may set more.
WATCHDOG_S = float(os.environ.get("SOFTS_TEST_WATCHDOG_S", "45"))

#: Workers of pytest of which each has ports of its own.
_PORT_RANGES = 16


class Watched(Protocol):
    """A process that must not end while a test waits for what it does, as `Lines`, or one of multiprocessing."""

    def is_alive(self) -> bool:
        """Whether it still runs."""


def eventually(
    condition: Callable[[], T | None],
    what: object = "condition",
    *,
    watched: Watched | None = None,
    within_s: float = WATCHDOG_S,
    every_s: float = 0.002,
) -> T:
    """Wait until a condition holds, and return what it returned.

    Args:
        condition: Function asked again and again, until what it returns is true.
        what: Name of what is awaited, for the text of the failure; a function is called for it then.
        watched: A process; once it has ended, the wait ends.
        within_s: How long to wait.
        every_s: Pause between two looks.

    Raises:
        AssertionError: the time is over, or the process has ended.
    """
    give_up = time.monotonic() + within_s
    while True:
        # Looked at first: what it did before its end counts.
        is_alive = watched is None or watched.is_alive()
        if found := condition():
            return found
        assert is_alive, f"{watched} ended before: {_text(what)}"
        assert time.monotonic() < give_up, f"not within {within_s} s: {_text(what)}"
        time.sleep(every_s)


def n_sleeps(thread: int) -> int:
    """How often a thread has gone to sleep, of this process or another one; that of a process is its main thread."""
    status = Path(f"/proc/{thread}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:\t")[1].split("\n")[0])


async def eventually_async(condition: Callable[[], T | None], what: object = "condition") -> T:
    """Wait as `eventually` does, while the event loop runs on."""
    give_up = time.monotonic() + WATCHDOG_S
    while not (found := condition()):
        assert time.monotonic() < give_up, f"not within {WATCHDOG_S} s: {_text(what)}"
        await asyncio.sleep(0.002)
    return found


def _text(what: object) -> object:
    return what() if callable(what) else what


@contextlib.contextmanager
def stopped_clock() -> Iterator[None]:
    """Stop the clock of a test while it makes what other tests use too, such as imports of seconds and models.

    The first test to need them would have less time than the others. What never ends is still a failure.
    """
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    if left_s:
        signal.setitimer(signal.ITIMER_REAL, 10 * WATCHDOG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)


def free_ports(n: int = 1) -> list[int]:
    """Return ports of loopback at which nothing listens; all are held until the last one is chosen.

    None is of the range from which the kernel takes ports of its own choice: a connection of another process could get
    one of those before it is used. Nor is one in reach of another worker of pytest, which could find it free too.
    """
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PORT_RANGES
    own = range(10_000 + number, below, _PORT_RANGES)
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < n:
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", random.SystemRandom().choice(own)))
                ports.append(probe.getsockname()[1])
        return ports


class Lines:
    """A Python process that prints lines, which a thread reads.

    Args:
        arguments: Arguments of the interpreter.
        prefix: Command that runs it elsewhere.
    """

    def __init__(self, arguments: Sequence[str], prefix: Sequence[str] = ()) -> None:
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        # The last ones that were taken, for the text of a failure.
        self._taken: deque[str] = deque(maxlen=20)
        self._threads = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def line(self, awaited: str = "line") -> str:
        """The next line; `awaited` names what is awaited, for the text of a failure."""
        try:
            line = self._lines.get(timeout=WATCHDOG_S)
        except queue.Empty:
            raise AssertionError(f"no {awaited} within {WATCHDOG_S} s; {self._told()}") from None
        if line is None:
            status = self.wait()
            self._threads[1].join(WATCHDOG_S)
            raise AssertionError(f"ended with {status} before: {awaited}; {self._told()}")
        self._taken.append(line)
        return line

    def match(self, pattern: str) -> str:
        """Drop lines up to the next one that is as a pattern says; that one."""
        while not re.fullmatch(pattern, line := self.line(pattern)):
            pass
        return line

    def event(self, name: str) -> dict[str, Any]:
        """Drop lines up to the next event of a name, as JSON; that one."""
        while True:
            line = self.line(f"event {name!r}")
            event: dict[str, Any] = json.loads(line) if line.startswith("{") else {"event": ""}
            if event["event"] == name:
                return event

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait(WATCHDOG_S)

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def logged(self, text: str) -> str:
        """Wait for a line with a text on its standard error; the line."""
        return eventually(
            lambda: next((line for line in list(self.errors) if text in line), ""),
            lambda: f"{text!r}; {self._told()}",
            # All errors of a process that has ended are known when their reader has ended.
            watched=self._threads[1],
        )

    def _told(self) -> str:
        return f"the last lines: {list(self._taken)}; errors: {self.errors}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)
