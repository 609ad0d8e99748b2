"""Workers as forks that also have process groups; those that hang are ended, as a fleet does."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from flow_processes import ForkedWorkers
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.control import new_token
from softs_fast.dataflow.link.stream import ControlMaster, ControlWorker
from softs_fast.dataflow.process.worker import FlowWorker
from softs_fast.dataflow.workers.processes import ProcessBackend

#: So long a fleet waits for a worker that was told to end; one that has nothing to wait for may take longer to exit.
FLEET_END_S = 3.0


def serve(
    worker: int, make: Callable[[], Declaration], lines: list[str], endpoint: str, token: str, meeting: str
) -> None:
    """Be a worker."""
    one = FlowWorker(worker, make, lines, functools.partial(ControlWorker, endpoint, token), meeting)
    one.start()
    one.wait()
    one.stop()


class MeetingWorkers(ForkedWorkers):
    """Processes that form groups."""

    #: How long workers may take to end, and those that had to be killed then.
    end_s = WATCHDOG_S
    killed: tuple[int, ...] = ()

    #: What a process runs.
    serve = staticmethod(serve)

    def start(self) -> ControlMaster:
        """Start all; each joins when it has begun."""
        token = new_token()
        link = ControlMaster(token)
        self._file = os.memfd_create("meeting")
        self._told = (link.endpoint, token, f"/proc/{os.getpid()}/fd/{self._file}")
        for worker in self._declaration.workers:
            self._start(worker)
        return link

    def close(self) -> None:
        """Wait until all have ended, and end those that do not."""
        for worker, process in self.processes.items():
            process.join(self.end_s)
            if process.exitcode is None:
                self.killed += (worker,)
                process.kill()
        if self.processes:
            os.close(self._file)
        super().close()


def in_meeting(
    module: str, function: str, *, max_restarts: int = 0, **arguments: Any
) -> tuple[df.Flow, MeetingWorkers]:
    """Return a flow of which each worker is a process, with process groups."""
    flow: df.Flow = getattr(importlib.import_module(module), function)(**arguments)
    workers = MeetingWorkers(module, function, arguments, max_restarts)
    flow._use(ProcessBackend(flow.declaration, workers))
    return flow, workers
