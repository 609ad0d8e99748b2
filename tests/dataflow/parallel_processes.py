"""Workers as forks that also have process groups; those that hang are ended, as a fleet does."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from flow_processes import ForkedWorkers

import softs_fast.dataflow as df
from softs_fast.dataflow.backends.processes import ProcessBackend
from softs_fast.dataflow.control import new_token
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.wire.control import ControlMaster, ControlWorker
from softs_fast.dataflow.worker.process import FlowWorker

#: So long a fleet waits for a worker that was told to end.
END_S = 3.0


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

    #: Workers that had to be killed at the end.
    killed: tuple[int, ...] = ()

    def start(self) -> ControlMaster:
        """Start all; each joins when it has begun."""
        token = new_token()
        link = ControlMaster(token)
        context = multiprocessing.get_context("forkserver")
        self._file = os.memfd_create("meeting")
        meeting = f"/proc/{os.getpid()}/fd/{self._file}"
        for worker in self._declaration.workers:
            arguments = (worker, self._build, self._declaration.lines(), link.endpoint, token, meeting)
            self.processes[worker] = context.Process(target=serve, args=arguments)
            self.processes[worker].start()
        return link

    def close(self) -> None:
        """Wait until all have ended, and end those that do not."""
        for worker, process in self.processes.items():
            process.join(END_S)
            if process.exitcode is None:
                self.killed += (worker,)
                process.kill()
        if self.processes:
            os.close(self._file)
        super().close()


def in_meeting(module: str, function: str, **arguments: Any) -> tuple[df.Flow, MeetingWorkers]:
    """Return a flow of which each worker is a process, with process groups."""
    flow: df.Flow = getattr(importlib.import_module(module), function)(**arguments)
    workers = MeetingWorkers(module, function, arguments)
    flow._use(ProcessBackend(flow.declaration, workers))
    return flow, workers
