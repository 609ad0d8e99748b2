"""Worker processes of a flow, as a fleet starts, watches and ends them."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from ...errors import FleetError, FlowError
from ...fleet import NamedFactory, RestartPolicy, Workers
from ..declare.declaration import Declaration
from ..link.stream import MasterStream, WorkerStream, join, listen_at
from ..process.groups import has_groups
from ..process.worker import Argument, FlowWorker

__all__ = ["FleetProcesses", "declaration_of"]

#: Variable by which a process knows the number of its worker.
_NUMBER = "SOFTS_FLOW_WORKER"
#: How long a process may take to end after its connection has, seconds.
_END_S = 3.0
#: States of a worker that runs or will run.
_AGAIN = ("pausing", "starting", "serving", "ending")


class FleetProcesses:
    """The processes of a flow. The fleet starts a worker that has failed again; whether it is used, the backend decides.

    Args:
        function: Function that makes the flow, as "package.module:function".
        arguments: Arguments of that function.
        declaration: Declaration of the master's flow.
        start_timeout_s: How long the workers may take until their roles are made.
        max_restarts: Failures in a row after which a worker is not started again.
    """

    def __init__(
        self,
        function: str,
        arguments: Mapping[str, Argument],
        declaration: Declaration,
        start_timeout_s: float,
        max_restarts: int = 0,
    ) -> None:
        self._function = function
        self._arguments = dict(arguments)
        self._declaration = declaration
        self._start_timeout_s = start_timeout_s
        self._policy = RestartPolicy(max_restarts=max_restarts)
        self._numbers = declaration.workers
        self._workers: Workers | None = None
        self._meeting: int | None = None

    def start(self) -> MasterStream:
        """Start all, and wait until each has made its objects.

        Raises:
            FlowError: one of them failed, with its traceback, or they took too long.
        """
        link = MasterStream(listen_at("ipc://*", None))
        try:
            meeting = None
            if has_groups(self._declaration):
                # A file without a name: nothing is left of it, whatever process is killed.
                self._meeting = os.memfd_create("softs-flow")
                meeting = f"/proc/{os.getpid()}/fd/{self._meeting}"
            make = functools.partial(
                _make_worker,
                self._function,
                self._arguments,
                tuple(self._declaration.lines()),
                link.endpoint,
                meeting,
            )
            self._workers = Workers(
                make,
                {},
                policy=self._policy,
                start_timeout_s=self._start_timeout_s,
                environment_of=lambda number: {_NUMBER: str(self._numbers[number])},
            )
            self._workers.scale(len(self._numbers))
        except FleetError as error:
            link.close()
            raise FlowError(f"the workers of the flow could not begin: {error}") from error
        except BaseException:
            link.close()
            raise
        return link

    def why(self, worker: int) -> str:
        """Return how the process of a worker has ended; empty if that is not known."""
        if self._workers is None:
            return ""
        return self._workers.reason(self._numbers.index(worker), _END_S)

    def kill(self, worker: int, reason: str) -> None:
        """End the process of a worker at once. One that has ended is left alone."""
        if self._workers is not None:
            self._workers.kill(self._numbers.index(worker))

    def restarts(self, worker: int) -> bool:
        """Return whether a worker that has left is started again, or has been."""
        if self._workers is None:
            return False
        return self._workers.states()[f"worker {self._numbers.index(worker)}"] in _AGAIN

    def close(self) -> None:
        """End all."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()
        meeting, self._meeting = self._meeting, None
        if meeting is not None:
            os.close(meeting)


def _make_worker(
    function: str,
    arguments: dict[str, Argument],
    lines: tuple[str, ...],
    endpoint: str,
    meeting: str | None,
) -> FlowWorker:
    """Return the worker of this process."""
    worker = int(os.environ[_NUMBER])
    return FlowWorker(
        worker,
        functools.partial(declaration_of, function, arguments),
        lines,
        lambda number: WorkerStream(join(endpoint, None, number)),
        meeting,
    )


def declaration_of(function: str, arguments: dict[str, Argument]) -> Declaration:
    """Return the declaration of the flow that a function makes.

    Raises:
        ConfigError: there is no such function.
        TypeError: it returns no flow.
    """
    flow = NamedFactory(function).load()(**arguments)
    declaration = getattr(flow, "declaration", None)
    if not isinstance(declaration, Declaration):
        raise TypeError(f"{function} returned a {type(flow).__name__}; need a Flow")
    return declaration
