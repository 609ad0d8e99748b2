"""A coordinator and workers as processes, seen from a test."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_S = 45.0
WORKER = Path(__file__).with_name("worker_process.py")


class Lines:
    """A process that prints lines; they are read by a thread. `prefix` is a command that runs it elsewhere."""

    def __init__(self, arguments: list[str], prefix: Sequence[str] = ()) -> None:
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
        self._threads = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def line(self) -> str:
        """The next line."""
        try:
            line = self._lines.get(timeout=WATCHDOG_S)
        except queue.Empty:
            raise AssertionError(f"no line within {WATCHDOG_S} s; errors: {self.errors}") from None
        assert line is not None, f"ended with {self.process.wait()}: {self.errors}"
        return line

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

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
        give_up = time.monotonic() + WATCHDOG_S
        while time.monotonic() < give_up:
            if found := [line for line in list(self.errors) if text in line]:
                return found[0]
            time.sleep(0.005)
        raise AssertionError(f"nothing of {text!r} within {WATCHDOG_S} s; errors: {self.errors}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)


class Coordinator(Lines):
    """A coordinator; `address` is where it listens."""

    def __init__(self, *options: str, prefix: Sequence[str] = ()) -> None:
        super().__init__(["-W", "error", "-m", "softs_fast", "coordinator", "run", *options], prefix)
        self.address = ""

    def started(self) -> Coordinator:
        """Wait until it listens."""
        self.address = self.line().removeprefix("coordinator ")
        return self


class Worker(Lines):
    """A worker; it reports what its listener is told, as events."""

    def __init__(self, address: str, worker_id: str, **options: Any) -> None:
        self.worker_id = worker_id
        super().__init__([str(WORKER), json.dumps({"address": address, "worker_id": worker_id, **options})])

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the next event of a name; others before it are dropped."""
        give_up = time.monotonic() + WATCHDOG_S
        while True:
            event: dict[str, Any] = json.loads(self.line())
            if event["event"] == name:
                return event
            assert time.monotonic() < give_up, f"no {name} within {WATCHDOG_S} s"

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have it do something; the result."""
        self.tell(json.dumps([command, *arguments]))
        return self.event("done")["result"]


class Cluster:
    """Processes that end with the test."""

    def __init__(self) -> None:
        self._all: list[Lines] = []

    def add(self, process: Lines) -> Lines:
        """Have a process end with the test."""
        self._all.append(process)
        return process

    def coordinator(
        self, *options: str, listen: str = "127.0.0.1:0", prefix: Sequence[str] = ()
    ) -> Coordinator:
        """A coordinator that listens."""
        coordinator = Coordinator("--listen", listen, *options, prefix=prefix)
        self._all.append(coordinator)
        return coordinator.started()

    def worker(self, coordinator: Coordinator | str, worker_id: str, **options: Any) -> Worker:
        """A worker that has begun to connect."""
        address = coordinator if isinstance(coordinator, str) else coordinator.address
        worker = Worker(address, worker_id, **options)
        self._all.append(worker)
        return worker

    def end(self) -> None:
        """Kill all."""
        for process in self._all:
            if process.process.poll() is None:
                process.signal(signal.SIGCONT)
            process.kill()
