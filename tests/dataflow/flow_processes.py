"""Workers of a flow as forks of a process that has imported torch: real deaths without the time of a start."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import WATCHDOG_S, eventually

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.stream import MasterStream, WorkerStream, join, listen_at
from softs_fast.dataflow.process.worker import FlowWorker
from softs_fast.dataflow.workers.processes import ProcessBackend

#: So long a fleet waits for a worker that was told to end.
END_S = 3.0


def build(module: str, function: str, arguments: dict[str, Any]) -> Declaration:
    """Return the declaration of a flow."""
    flow: df.Flow = getattr(importlib.import_module(module), function)(**arguments)
    return flow.declaration


def serve(
    worker: int,
    make: Callable[[], Declaration],
    lines: list[str],
    endpoint: str,
    meeting: str | None = None,
) -> None:
    """Be a worker."""
    one = FlowWorker(worker, make, lines, lambda number: WorkerStream(join(endpoint, None, number)), meeting)
    one.start()
    one.wait()
    one.stop()


class ForkedWorkers:
    """The processes of a flow. One that has ended is started again at once.

    Args:
        module: Module of the function that makes the flow.
        function: Name of the function.
        arguments: Arguments of the function.
        max_restarts: Number of restarts of all workers together.
        meets: Whether workers form process groups; then all may take long to end.
    """

    #: Those that had to be killed in the end.
    killed: tuple[int, ...] = ()

    def __init__(
        self,
        module: str,
        function: str,
        arguments: dict[str, Any],
        max_restarts: int = 0,
        meets: bool = False,
    ) -> None:
        self.left, self.meets = max_restarts, meets
        #: How long workers may take to end.
        self.end_s = WATCHDOG_S if meets else END_S
        self.again: set[int] = set()
        self._build = functools.partial(build, module, function, arguments)
        self._declaration = self._build()
        self.processes: dict[int, Any] = {}

    def start(self) -> MasterStream:
        """Start all; each joins when it has begun."""
        link = MasterStream(listen_at("ipc://*", None))
        self._told: tuple[str, ...] = (link.endpoint,)
        if self.meets:
            self._file = os.memfd_create("meeting")
            self._told += (f"/proc/{os.getpid()}/fd/{self._file}",)
        for worker in self._declaration.workers:
            self._start(worker)
        return link

    def _start(self, worker: int) -> None:
        context = multiprocessing.get_context("forkserver")
        arguments = (worker, self._build, self._declaration.lines(), *self._told)
        self.processes[worker] = context.Process(target=serve, args=arguments)
        self.processes[worker].start()

    def restarts(self, worker: int) -> bool:
        """Start a worker again if its process has ended; returns whether there is one."""
        if self.processes[worker].exitcode is None:
            return True
        if not self.left:
            return False
        self.left -= 1
        self.again.add(worker)
        self.processes[worker].close()
        self._start(worker)
        return True

    def why(self, worker: int) -> str:
        """Return how the process of a worker has ended."""
        process = self.processes[worker]
        process.join(WATCHDOG_S)
        status = process.exitcode
        assert status is not None
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def kill(self, worker: int, reason: str) -> None:
        """End the process of a worker at once."""
        self.processes[worker].kill()

    def close(self) -> None:
        """Wait until all have ended. One that has not joined is not told to end, so it is killed, as a fleet does."""
        for worker, process in self.processes.items():
            if self.meets or worker not in self.again:
                process.join(self.end_s)
            if process.exitcode is None:
                self.killed += (worker,)
            process.kill()
            process.join(WATCHDOG_S)
            process.close()
        if self.processes and self.meets:
            os.close(self._file)
        self.processes.clear()


def stop(pid: int) -> None:
    """Have all threads of a process stand still; the one that gets the signal tells the others when it runs."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: _stands_still(pid), f"process {pid} has stopped")


def _stands_still(pid: int) -> bool:
    states = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            # The state follows the name, which is in parentheses.
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states == {"T"}


def in_forks(
    module: str, function: str, *, max_restarts: int = 0, meets: bool = False, **arguments: Any
) -> tuple[df.Flow, ForkedWorkers]:
    """Return a flow of which each worker is a process; with `meets` they form process groups."""
    flow: df.Flow = getattr(importlib.import_module(module), function)(**arguments)
    workers = ForkedWorkers(module, function, arguments, max_restarts, meets)
    flow._use(ProcessBackend(flow.declaration, workers))
    return flow, workers


in_meeting = functools.partial(in_forks, meets=True)
