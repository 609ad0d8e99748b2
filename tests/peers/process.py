"""Peers in processes of their own, seen from the test; each is the fork of a process that has imported what it needs."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from networks import Host
from waiting import WATCHDOG_S, eventually, stopped_clock

HERE = Path(__file__).parent


def environment(path: str | None) -> dict[str, str]:
    """The environment of a peer: one thread for arithmetic, `path` in front of the Python path."""
    paths = [p for p in (path, os.environ.get("PYTHONPATH")) if p]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


class Process:
    """A running peer: its events, its end."""

    #: All that ever ran.
    pids: ClassVar[set[int]] = set()

    def __init__(self, role: str, connection: socket.socket) -> None:
        self.role = role
        #: What it reported when it was ready.
        self.ready: dict[str, Any] = {}
        #: Texts of what it logged.
        self.logs: list[str] = []
        #: Exit status of the process, negative for a signal; None while it runs.
        self.status: int | None = None
        self._connection = connection
        self._has_ended = threading.Event()
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        # The last ones that were taken, for the text of a failure.
        self._taken: deque[dict[str, Any]] = deque(maxlen=20)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid: int = self.event("born")["pid"]
        self.pids.add(self.pid)

    def event(self, name: str | None = None, watchdog_s: float = WATCHDOG_S) -> dict[str, Any]:
        """Wait for an event, the next one or the next of this name; a problem before it fails the test."""
        give_up = time.monotonic() + watchdog_s
        while True:
            try:
                event = self._events.get(timeout=max(give_up - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"{self}: no {name!r} within {watchdog_s} s; {self._told()}") from None
            assert event is not None, f"{self} ended with {self.status} before {name!r}; {self._told()}"
            self._taken.append(event)
            self._check(event)
            if name in (None, event["event"]):
                return event

    def drain(self) -> None:
        """Drop the events that have arrived; a problem among them fails the test."""
        for _ in range(self._events.qsize()):
            event = self._events.get()
            assert event is not None, f"{self} has ended"
            self._check(event)

    def tell(self, line: str = "") -> None:
        """Write a line to its standard input."""
        self._connection.sendall(f"{line}\n".encode())

    def stop(self) -> None:
        """Have all its threads stand still."""
        os.kill(self.pid, signal.SIGSTOP)
        # The thread that gets the signal tells the others when it runs.
        eventually(self._stands_still, f"{self} has stopped")

    def is_dead(self) -> bool:
        """Whether the process has ended."""
        return self._has_ended.is_set()

    def wait(self, watchdog_s: float = WATCHDOG_S) -> int:
        """Wait until the process has ended by itself; its exit status."""
        assert self._has_ended.wait(watchdog_s), f"{self} still runs after {watchdog_s} s"
        assert self.status is not None
        return self.status

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up. Returns when the process is gone."""
        if not self.is_dead():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.wait()
        self._close()

    def ask_to_end(self) -> None:
        """Close its standard input."""
        with contextlib.suppress(OSError):  # it may have ended before
            self._connection.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Close its standard input and wait; kill it if it does not end."""
        self.ask_to_end()
        if not self._has_ended.wait(10):
            self.kill()
        self._close()

    def __str__(self) -> str:
        return f"{self.role} {getattr(self, 'pid', '')}"

    def _stands_still(self) -> bool:
        for thread in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                # The state follows the name, which is in parentheses.
                if thread.read_text().rpartition(")")[2].split()[0] != "T":
                    return False
        return True

    def _told(self) -> str:
        return f"the last events: {list(self._taken)}; logged: {self.logs}"

    def _check(self, event: dict[str, Any]) -> None:
        assert event["event"] != "problem", f"{self}: {event['problem']}"

    def _read(self) -> None:
        with self._connection.makefile("r") as lines:
            for line in lines:
                event = json.loads(line)
                if event["event"] == "ended":
                    self.status = event["status"]
                    self._has_ended.set()
                elif event["event"] == "log":
                    self.logs.append(event["text"])
                else:
                    self._events.put(event)
        self._events.put(None)

    def _close(self) -> None:
        # Forks of the peer may still have its end of the connection.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()


class Zygote:
    """A process that has imported a script, and what it imports, and forks peers that run it; see zygote.py.

    Args:
        script: Script that defines `run(role, options)`.
        package: Package imported before the script; None for no other than those of the script.
        path: Path that is put in front of the Python path.
    """

    _all: ClassVar[dict[tuple[Path, str | None, str | None], Zygote]] = {}

    def __init__(self, script: Path, package: str | None, path: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sz")
        self._n_forks = 0
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), script, *filter(None, [package])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(path),
            text=True,
        )
        assert self._process.stdout is not None
        with stopped_clock():
            ready = self._process.stdout.readline()
        assert ready == "ready\n", f"{script} or {package} cannot be imported"
        atexit.register(self._end)

    @classmethod
    def of(cls, script: Path, package: str | None = None, path: str | None = None) -> Zygote:
        """The zygote of a script; started when it is first asked for, ends with the test run."""
        key = (script, package, path)
        if key not in cls._all:
            cls._all[key] = cls(*key)
        return cls._all[key]

    @classmethod
    def pids(cls) -> set[int]:
        """The zygotes that run."""
        return {zygote._process.pid for zygote in cls._all.values()}

    @classmethod
    def descriptors(cls) -> set[int]:
        """What is open for the zygotes that run."""
        pipes = (
            pipe for zygote in cls._all.values() for pipe in (zygote._process.stdin, zygote._process.stdout)
        )
        return {pipe.fileno() for pipe in pipes if pipe is not None}

    def fork(
        self,
        role: str,
        options: dict[str, Any],
        variables: dict[str, str] | None = None,
        host: Host | None = None,
    ) -> Process:
        """A new peer, on a host of a network or on this one; `variables` are put into its environment."""
        assert self._process.stdin is not None
        self._n_forks += 1
        address = f"{self._folder.name}/{self._n_forks}"
        request = {
            "role": role,
            "options": options,
            "variables": variables or {},
            "socket": address,
            "host": None if host is None else host.pid,
        }
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(WATCHDOG_S)
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            connection, _ = listener.accept()
        os.unlink(address)
        return Process(role, connection)

    def _end(self) -> None:
        self._process.kill()
        self._folder.cleanup()
