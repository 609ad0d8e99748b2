"""A worker of a flow as a process of a fleet: it builds the flow from the same function as the master, and serves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ...errors import ConfigError, PeerLost
from ..declare.declaration import Declaration
from ..link.messages import Ready
from ..link.stream import WorkerStream
from ..store import DataManager
from .groups import Groups, has_groups
from .loop import WorkerLoop
from .stack import answers_stack

__all__ = ["Argument", "FlowWorker", "arguments_of", "check_same"]

#: What a function that makes a flow may be given: both sides give it the same.
Argument = str | int | float | bool | None


def check_same(worker: int, theirs: Sequence[str], own: Sequence[str]) -> None:
    """Check that master and worker have built the same flow.

    Args:
        worker: number of the worker.
        theirs: lines of the master's declaration.
        own: those of the worker's.

    Raises:
        ConfigError: they differ; the text has the first difference.
    """
    for number, (master, mine) in enumerate(zip_longest(theirs, own, fillvalue="nothing"), 1):
        if master != mine:
            raise ConfigError(
                f"worker {worker} has built another flow than its master; line {number} of the declaration is "
                f"{mine!r} there and {master!r} at the master; the function must return the same flow each time"
            )


@dataclass
class FlowWorker:
    """One worker; what a fleet starts, awaits and ends.

    Args:
        worker: its number.
        build: returns the declaration of the flow.
        lines: those of the master's declaration.
        connect: returns the link to the master.
        meeting: path of an empty file by which the workers of this host find each other, if a role is on several; None:
            roles get no process groups.
    """

    worker: int
    build: Callable[[], Declaration]
    lines: Sequence[str]
    connect: Callable[[int], WorkerStream]
    meeting: str | None = None

    def __post_init__(self) -> None:
        self._is_ready = threading.Event()
        self._loop: WorkerLoop | None = None
        self._error: BaseException | None = None
        # One thread does all: random numbers, gradient modes and devices of torch belong to threads.
        self._thread = threading.Thread(target=self._run, name=f"softs-flow-{self.worker}", daemon=True)

    def start(self) -> None:
        """Make the objects of the roles; returns when they are made and the master knows this worker.

        Raises:
            ConfigError: this process has built another flow than the master.
            Exception: what the function of the flow, or `setup` of a role, raised.
        """
        self._thread.start()
        self._is_ready.wait()
        if self._error is not None:
            self._thread.join()
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until the flow has ended."""
        self._thread.join()

    def stop(self) -> None:
        """End when the step that runs has ended.

        Raises:
            Exception: what has ended the worker before.
        """
        if self._loop is not None:
            self._loop.end()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            declaration = self.build()
            check_same(self.worker, self.lines, declaration.lines())
            link = self.connect(self.worker)
            try:
                with answers_stack(link), contextlib.ExitStack() as stack:
                    store = stack.enter_context(DataManager(self.worker))
                    groups = None
                    if self.meeting is not None and has_groups(declaration):
                        groups = stack.enter_context(Groups(declaration, self.worker, self.meeting))
                    self._loop = WorkerLoop(self.worker, declaration, link, store, groups)
                    self._loop.setup()
                    self._is_ready.set()
                    with contextlib.suppress(PeerLost):  # `run` returns then
                        link.send(Ready())
                    self._loop.run()
            finally:
                link.close()
        except BaseException as error:
            self._error = error
        finally:
            self._is_ready.set()


def arguments_of(arguments: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return arguments of a function that makes a flow.

    Raises:
        ConfigError: one is none that both sides can have.
    """
    for name, value in arguments.items():
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise ConfigError(
                f"argument {name} is a {type(value).__name__}; the function of a flow is called in each process, with "
                "str, int, float, bool or None"
            )
    return dict(arguments)
