"""The loop of a worker: steps strictly by ticket, one at a time; what arrives between them is handled at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgpack

from ...errors import FlowError, PeerLost, WireError
from ...user_code import is_ctrl_c, text_of_error
from ..declare.declaration import Declaration
from ..link.messages import (
    Abort,
    Columns,
    Declared,
    ElementsRead,
    End,
    Failure,
    Fetched,
    Free,
    HookTask,
    MainTask,
    Message,
    MoveTask,
    ReadElements,
    Ready,
    Refused,
    Result,
    State,
    Task,
)
from ..link.stream import WorkerStream
from ..master.order.executor import Executor
from ..store import DataManager, Place
from ..store.weights.shown import Shown
from .groups import Groups
from .loader import Loader
from .objects import Objects
from .orders import work_of
from .part import Part
from .shards import Shards
from .work import Work, name_of

__all__ = ["WorkerLoop"]


class _Aborted(FlowError):
    """The hook that this worker waits in has failed elsewhere."""


@dataclass
class WorkerLoop:
    """Runs what a master orders until the flow ends.

    Args:
        worker: Number of this worker.
        declaration: Declaration of the flow.
        link: Link to the master.
        store: Store of this process.
        groups: Process groups of roles on several workers; None: the flow has no groups.
    """

    worker: int
    declaration: Declaration
    link: WorkerStream
    store: DataManager
    groups: Groups | None = None
    _executor: Executor[Task] = field(default_factory=Executor, init=False)
    _states: dict[int, list[Shown]] = field(default_factory=dict, init=False)
    _aborted: str | None = field(default=None, init=False)
    _last_ticket: int = field(default=0, init=False)
    _is_ending: bool = field(default=False, init=False)
    _shown: Task | None = field(default=None, init=False)
    #: The step of now, and what is to be done.
    _work: tuple[Task, Work] | None = field(default=None, init=False)
    _since_s: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        self._objects = Objects(self.declaration.roles, self.worker, self.groups)
        self._part = Part(self.declaration, self._objects, self.store, self._arrived)
        self._shards = Shards(self.declaration, self.worker, self.store.put, self.store.free)
        self._loader = Loader(self._shards, self.link.send)

    def setup(self) -> None:
        """Make the objects of the roles, and publish what `model_config` says of each, and how long shards are.

        Raises:
            Exception: what `setup` of a role raised, or a method that gives a shard.
        """
        self._objects.setup()
        for source, n_elements in self._shards.setup(self._objects).items():
            self.link.publish(f"dataset {source}", msgpack.packb(n_elements))
        for role in self._objects.roles:
            try:
                config = msgpack.packb({"value": self._objects[role].model_config()})
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                config = msgpack.packb({"error": text_of_error(error)[:1000]})
            self.link.publish(f"model_config {role.name}", config)
        self._publish_inside(None)

    def end(self) -> None:
        """Have `run` return when the step that runs has ended; any thread may call it. The link is closed at once."""
        self._is_ending = True
        self.link.close()

    def run(self) -> None:
        """Run until the flow ends, or its master.

        Raises:
            WireError: the master has sent what it cannot mean: the two are not of one version.
        """
        try:
            while not self._is_ending:
                self._receive(0.0 if self._executor.waiting else None)
                task = None if self._is_ending else self._executor.enter()
                if task is not None:
                    self._run(task)
        except PeerLost:
            return
        finally:
            self._loader.close()
            self._objects.close()

    def _run(self, task: Task) -> None:
        if self._executor.is_void(task):
            self._last_ticket = task.ticket
            self._executor.leave()
            self._skip(task.ticket, "an earlier step of the same call has failed here")
            return
        self._publish_inside(task)
        try:
            result = self._part.run(
                self._work_of(task),
                task.ticket,
                lambda role, known: self._await_state(task.ticket, role, known),
                lambda shown: self.link.send(State(task.ticket, shown)),
            )
        finally:
            # Also those of steps before it that were skipped: what was shown for them may have come after that.
            for ticket in [one for one in self._states if one <= task.ticket]:
                self._drop_states(ticket)
            self._last_ticket = task.ticket
            self._aborted = None
            self._executor.leave()
            self._work = None
        self._publish_inside(None)
        try:
            self.link.send(result)
        except WireError as error:
            self._part.drop(result)
            result = Result(task.ticket, failure=Failure.of(error))
            self.link.send(result)
        if result.failure is not None:
            self._executor.fail(task.call)

    def _skip(self, ticket: int, reason: str) -> None:
        """Say that a step has ended that has not run."""
        self._drop_states(ticket)
        self.link.send(Result(ticket, failure=Failure(reason, reason)))

    def _work_of(self, task: Task) -> Work:
        if self._work is None or self._work[0] is not task:
            self._work = (task, work_of(self.declaration, task))
        return self._work[1]

    def _drop_states(self, ticket: int) -> None:
        for shown in self._states.pop(ticket, ()):
            self._part.near.pop(shown.place, None)

    def _arrived(self, ticket: int, column: str, ids: Sequence[int], places: Sequence[Place]) -> None:
        self.link.send(Fetched(ticket, tuple(ids), Columns.of({column: places})))

    def _await_state(self, ticket: int, role: int, known: int) -> list[Shown]:
        self._publish_inside(self._executor.inside, waits="the weights of another worker")
        try:
            return self._shown_of(ticket, role, known)
        finally:
            self._publish_inside(self._executor.inside)

    def _shown_of(self, ticket: int, role: int, known: int) -> list[Shown]:
        while True:
            found = [one for one in self._states.get(ticket, ()) if one.role == role]
            if len(found) > known:
                return found
            self._receive(None)
            if self._aborted is not None:
                raise _Aborted(self._aborted)
            if self._is_ending:
                raise _Aborted("the flow has ended")

    def _receive(self, timeout_s: float | None) -> None:
        for message in self.link.receive(timeout_s):
            self._take(message)

    def _take(self, message: Message) -> None:
        match message:
            case MainTask() | HookTask() | MoveTask():
                self._executor.receive(message)
            case Abort():
                found = self._executor.abort(message)
                if found == "inside":
                    # A function goes on, and the master drops what it makes; only a hook that waits returns.
                    self._aborted = message.reason
                elif found == "skipped":
                    self._skip(message.ticket, message.reason)
            case State():
                # A step may end without what is shown last.
                if message.ticket > self._last_ticket:
                    self._states.setdefault(message.ticket, []).append(message.shown)
                    if message.near is not None:
                        self._part.near[message.shown.place] = message.near
            case ReadElements():
                self._loader.read(message)
            case Free():
                self.store.free(message.ids)
            case End():
                self._is_ending = True
            case Declared():
                pass  # it was read when this worker joined
            case Result() | Ready() | Refused() | Fetched() | ElementsRead():
                raise WireError(f"a worker has got a {type(message).__name__}, which only masters get")

    def _publish_inside(self, task: Task | None, *, waits: str = "") -> None:
        """Say what this worker is inside of, and for what it waits there; the link answers while Python is busy."""
        if task is not self._shown:
            self._shown, self._since_s = task, time.monotonic()
        inside: dict[str, object] = {"seconds": time.monotonic() - self._since_s}
        inside |= {"waits": waits} if waits else {}
        if task is not None:
            inside |= {"ticket": task.ticket, "name": name_of(self._work_of(task))}
        self.link.publish("inside", msgpack.packb(inside))
