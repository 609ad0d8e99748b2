"""Starts, listens to and kills peers in processes of their own."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_S = 45.0


class Process:
    """One peer."""

    def __init__(self, role: str, package: str, options: dict[str, Any], path: str | None = None) -> None:
        self.role = role
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (path, environment.get("PYTHONPATH")) if p)
        environment["OMP_NUM_THREADS"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "role.py"), role, package, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.pid = self._process.pid
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        #: What it said when it was ready.
        self.ready: dict[str, Any] = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event; others before it are dropped, but a problem fails the test."""
        give_up = time.monotonic() + WATCHDOG_S
        while True:
            try:
                event = self._events.get(timeout=max(give_up - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"{self.role} {self.pid}: no {name!r} within {WATCHDOG_S} s") from None
            assert event is not None, f"{self.role} {self.pid} ended before {name!r}"
            assert event["event"] != "problem", event["problem"]
            if event["event"] == name:
                return event

    def events(self) -> list[dict[str, Any]]:
        """All events that have arrived and not been waited for."""
        found = []
        while not self._events.empty():
            event = self._events.get()
            if event is not None:
                found.append(event)
        return found

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Close its standard input and wait; kill it if it does not end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()
        self._process.stdout.close()


class Market:
    """Endpoints, and the processes around them."""

    def __init__(self, folder: Path, slot_size: int = 128, medium: str = "shm") -> None:
        self.folder = folder
        self.frontend, self.backend = f"ipc://{folder}/f", f"ipc://{folder}/b"
        self.slot_size, self.medium = slot_size, medium
        self._processes: list[Process] = []
        self._n_files = 0

    def start(self, role: str, options: dict[str, Any], package: str = "softs_fast", path: str | None = None) -> Process:
        """Start a peer and wait until it is ready."""
        process = Process(role, package, options, path)
        self._processes.append(process)
        process.ready = process.event("ready")
        return process

    def broker(self, package: str = "softs_fast", path: str | None = None, **options: Any) -> Process:
        """A broker."""
        return self.start("broker", {"frontend": self.frontend, "backend": self.backend, **options}, package, path)

    def supplier_options(self, **options: Any) -> dict[str, Any]:
        """What a supplier is started with."""
        defaults = {"endpoint": self.backend, "patterns": ["p.*"], "medium": self.medium, "slot_size": self.slot_size}
        return defaults | options

    def supplier(self, package: str = "softs_fast", path: str | None = None, **options: Any) -> Process:
        """A supplier."""
        return self.start("supplier", self.supplier_options(**options), package, path)

    def client(self, package: str = "softs_fast", path: str | None = None, **options: Any) -> Process:
        """A client."""
        defaults: dict[str, Any] = {
            "endpoint": self.frontend,
            "medium": self.medium,
            "slot_size": self.slot_size,
            "n_slots": 4,
            "n_samples": 100,
            "product": "p1",
        }
        if self.medium == "file":
            self._n_files += 1
            defaults["settings"] = {"address": str(self.folder / f"slots{self._n_files}")}
        return self.start("client", defaults | options, package, path)

    def end(self) -> None:
        """End all processes: clients first, the broker last."""
        order = {"client": 0, "supplier": 1, "broker": 2}
        for process in sorted(self._processes, key=lambda p: order[p.role]):
            process.end()


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + WATCHDOG_S
    while not condition():
        assert time.monotonic() < give_up, f"not within {WATCHDOG_S} s: {what}"
        time.sleep(0.002)
