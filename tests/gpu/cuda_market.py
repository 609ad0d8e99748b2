"""A broker here, and teachers and students in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from softs_fast import Broker, EndpointConfig

HERE = Path(__file__).parent
#: What must happen happens within this, or the test hangs; it is never what a test measures.
WATCHDOG_S = 45.0


class Peer:
    """A process that says what happens in lines of JSON."""

    def __init__(self, script: str, options: dict[str, Any], environment: dict[str, str]) -> None:
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **environment},
            text=True,
        )
        self.pid = self._process.pid
        self.logs: list[str] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event."""
        while True:
            event = self._events.get(timeout=WATCHDOG_S)
            assert event is not None, f"{self.pid} ended before {name!r}"
            if event["event"] == name:
                return event

    def await_death(self) -> None:
        """Wait until it has died by itself."""
        assert self._process.wait(timeout=WATCHDOG_S) == -9

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Let it end; kill it if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                event = json.loads(line)
                if event["event"] == "log":
                    self.logs.append(event["text"])
                self._events.put(event)
        self._events.put(None)


class CudaMarket:
    """A broker, and who trades there."""

    def __init__(self, folder: Path) -> None:
        self.endpoints = EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
        self._broker = Broker(self.endpoints)
        self._broker.start()
        self._peers: list[Peer] = []

    def teacher(
        self, *serves: dict[str, Any], environment: dict[str, str] | None = None, **options: Any
    ) -> Peer:
        """A teacher that serves what it is told, once it is ready; see `serve`."""
        defaults = {"point": None, "n_before": 0, "medium": "cuda"}
        peer = Peer(
            "teacher.py",
            {**defaults, "backend": self.endpoints.backend, "serves": serves, **options},
            environment or {},
        )
        self._peers.append(peer)
        peer.event("ready")
        return peer

    def helper_after(self, mortal: Peer, *serves: dict[str, Any]) -> threading.Thread:
        """Start another teacher once one has died, in a thread to be joined."""

        def help_out() -> None:
            mortal.await_death()
            self.teacher(*serves)

        thread = threading.Thread(target=help_out)
        thread.start()
        return thread

    def student(self, environment: dict[str, str] | None = None, **options: Any) -> Peer:
        """A student in a process of its own."""
        peer = Peer("student.py", {"frontend": self.endpoints.frontend, **options}, environment or {})
        self._peers.append(peer)
        return peer

    def end(self) -> None:
        """All of it."""
        for peer in self._peers:
            peer.end()
        self._broker.stop()


def serve(
    config: str,
    kind: str = "sample",
    *,
    where: str = "device",
    device: int = 0,
    wide: bool = False,
    product: str = "p",
) -> dict[str, Any]:
    """What a teacher serves: by which kind of function, from tensors that are where, and whether of floats that are to be cast."""
    return {
        "product": product,
        "config": config,
        "kind": kind,
        "where": where,
        "device": device,
        "wide": wide,
    }
