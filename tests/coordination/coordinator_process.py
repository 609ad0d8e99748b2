"""A coordinator and workers as processes, seen from a test."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from patience import LOST_AFTER_S
from waiting import Lines, free_ports

WORKER = Path(__file__).with_name("worker_process.py")


class Coordinator(Lines):
    """A coordinator; `address` is where it listens."""

    def __init__(self, *options: str, prefix: Sequence[str] = ()) -> None:
        super().__init__(["-W", "error", "-m", "softs_fast", "coordinator", "run", *options], prefix)
        self.address = ""

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


class Worker(Lines):
    """A worker; it reports what its listener is told, as events."""

    def __init__(self, address: str, worker_id: str, **options: Any) -> None:
        self.worker_id = worker_id
        super().__init__([str(WORKER), json.dumps({"address": address, "worker_id": worker_id, **options})])

    def order(self, command: str, *arguments: Any) -> None:
        """Have it do something, of which events are awaited: these may come before it is done."""
        self.tell(json.dumps([command, *arguments]))

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have it do something; the result."""
        self.order(command, *arguments)
        return self.event("done")["result"]


class Cluster:
    """Processes that end with the test."""

    def __init__(self) -> None:
        self._all: list[Lines] = []

    def add(self, process: Lines) -> Lines:
        """Have a process end with the test."""
        self._all.append(process)
        return process

    def coordinator(self, *options: str, listen: str = "", prefix: Sequence[str] = ()) -> Coordinator:
        """A coordinator that listens, at a port that no connection takes while another one starts there after it."""
        listen = listen or f"127.0.0.1:{free_ports()[0]}"
        coordinator = Coordinator(
            "--listen", listen, "--lost-after", str(LOST_AFTER_S), *options, prefix=prefix
        )
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
