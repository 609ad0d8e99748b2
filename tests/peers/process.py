"""One peer in a process of its own, seen from the test."""

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
from pathlib import Path
from typing import IO, Any, ClassVar

HERE = Path(__file__).parent
#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_S = 45.0


def environment(path: str | None) -> dict[str, str]:
    """The environment of a peer: one thread for arithmetic, `path` in front of the Python path."""
    paths = [p for p in (path, os.environ.get("PYTHONPATH")) if p]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}


class Process:
    """A peer: its events, its end."""

    def __init__(self, role: str, pid: int, reader: IO[str]) -> None:
        self.role, self.pid = role, pid
        #: What it said when it was ready.
        self.ready: dict[str, Any] = {}
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(reader,), daemon=True)
        self._reader.start()

    def _read(self, reader: IO[str]) -> None:
        with reader:
            for line in reader:
                self._events.put(json.loads(line))
        self._events.put(None)

    def event(self, name: str, watchdog_s: float = WATCHDOG_S) -> dict[str, Any]:
        """Wait for an event; others before it are dropped, but a problem fails the test."""
        give_up = time.monotonic() + watchdog_s
        while True:
            try:
                event = self._events.get(timeout=max(give_up - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"{self.role} {self.pid}: no {name!r} within {watchdog_s} s") from None
            assert event is not None, f"{self.role} {self.pid} ended before {name!r}"
            assert event["event"] != "problem", event["problem"]
            if event["event"] == name:
                return event

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up. Returns when the process is gone."""
        raise NotImplementedError

    def end(self) -> None:
        """Tell it to end and wait; kill it if it does not."""
        raise NotImplementedError


class Spawned(Process):
    """A fresh Python process."""

    def __init__(self, role: str, package: str, options: dict[str, Any], path: str | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "role.py"), role, package, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(path),
            text=True,
        )
        assert self._process.stdout is not None
        super().__init__(role, self._process.pid, self._process.stdout)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()


class Zygote:
    """A process that has imported a package and forks peers."""

    _all: ClassVar[dict[tuple[str, str | None], "Zygote"]] = {}

    def __init__(self, package: str, path: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sz")
        self._n_forks = 0
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), package],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(path),
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"{package} cannot be imported"
        atexit.register(self._process.kill)

    @classmethod
    def of(cls, package: str, path: str | None) -> "Zygote":
        """The zygote of a package; started when it is first asked for, ends with the test run."""
        if (package, path) not in cls._all:
            cls._all[package, path] = cls(package, path)
        return cls._all[package, path]

    def fork(self, role: str, options: dict[str, Any]) -> "Forked":
        """A new peer."""
        assert self._process.stdin is not None
        self._n_forks += 1
        address = f"{self._folder.name}/{self._n_forks}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(1)
            listener.settimeout(WATCHDOG_S)
            self._process.stdin.write(
                json.dumps({"role": role, "options": options, "socket": address}) + "\n"
            )
            self._process.stdin.flush()
            connection, _ = listener.accept()
        os.unlink(address)
        return Forked(role, connection)


class Forked(Process):
    """A fork of a zygote."""

    def __init__(self, role: str, connection: socket.socket) -> None:
        self._connection = connection
        reader = connection.makefile("r")
        super().__init__(role, json.loads(reader.readline())["pid"], reader)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._reader.join()
        self._connection.close()

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended before
            self._connection.shutdown(socket.SHUT_WR)
        self._reader.join(timeout=10)
        if self._reader.is_alive():
            self.kill()
        self._connection.close()
