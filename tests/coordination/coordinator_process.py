"""A coordinator and workers as processes, seen from a test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from networks import Host
from patience import LOST_AFTER_S
from process import Zygote
from waiting import eventually, free_ports

PEERS = Path(__file__).with_name("coordination_peers.py")


class Killed(Protocol):
    """What ends when it is told to, and is told again."""

    def kill(self) -> None:
        """End it at once, if it has not ended."""


One = TypeVar("One", bound=Killed)


class Peer:
    """A process of a coordinator or a worker."""

    def __init__(self, role: str, options: Any, host: Host | None = None) -> None:
        self.process = Zygote.of(PEERS, "softs_fast.coordination.server").fork(role, options, host=host)

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self.process.kill()


class Coordinator(Peer):
    """A coordinator; `address` is where it listens."""

    def __init__(self, *options: str, host: Host | None = None) -> None:
        super().__init__("coordinator", options, host)
        self.address = ""

    def line(self) -> str:
        """Return its next line."""
        return str(self.process.event("line")["text"])

    def logged(self, text: str) -> str:
        """Wait for a line with a text in its log; the line."""
        return eventually(
            lambda: next((line for line in list(self.process.logs) if text in line), ""),
            lambda: f"{text!r}; logged: {self.process.logs}",
        )

    def started(self) -> Coordinator:
        """Wait until it listens."""
        self.address = self.line().removeprefix("coordinator ")
        return self

    def status(self, until: Callable[[Any], object] = bool) -> Any:
        """The status of the job, once it is as a function says."""
        from softs_fast.coordination.session.calls import CoordinatorClient

        with CoordinatorClient(self.address) as client:
            return next(status for status in client.watch() if until(status))

    def resize(self, low: int, high: int) -> None:
        """Have the job be of so many workers: its first epoch waits for no time-out if they are all there are to be."""
        from softs_fast.coordination.job.events import Resize

        self.administer(Resize(low, high))

    def administer(self, action: Any) -> tuple[str, ...]:
        """Have an administrator's order done; what was logged."""
        from softs_fast.coordination.session.calls import CoordinatorClient

        with CoordinatorClient(self.address) as client:
            return client.administer(action)


class Worker(Peer):
    """A worker; it reports what its listener is told, as events."""

    def __init__(self, address: str, worker_id: str, **options: Any) -> None:
        self.worker_id = worker_id
        super().__init__("worker", {"address": address, "worker_id": worker_id, **options})

    def event(self, name: str) -> dict[str, Any]:
        """Drop events up to the next one of a name; that one."""
        return self.process.event(name)

    def order(self, command: str, *arguments: Any) -> None:
        """Have it do something, of which events are awaited: these may come before it is done."""
        self.process.tell(json.dumps([command, *arguments]))

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have it do something; the result."""
        self.order(command, *arguments)
        return self.event("done")["result"]


class Cluster:
    """Processes that end with the test."""

    def __init__(self) -> None:
        self._all: list[Killed] = []

    def add(self, process: One) -> One:
        """Have a process end with the test."""
        self._all.append(process)
        return process

    def coordinator(self, *options: str, listen: str = "", host: Host | None = None) -> Coordinator:
        """A coordinator that listens, at a port that no connection takes while another one starts there after it."""
        listen = listen or f"127.0.0.1:{free_ports()[0]}"
        coordinator = Coordinator("--listen", listen, "--lost-after", str(LOST_AFTER_S), *options, host=host)
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
            process.kill()
