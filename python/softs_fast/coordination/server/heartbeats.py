"""Workers without a stream: each is a connection that lasts as long as its heartbeats come.

The methods and their fields are those of the page that the project follows; each answer has the epoch too. Such a
worker cannot be told of a fence: the answer to its next heartbeat tells it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import PeerLost
from ..job.messages import CheckpointBegin, CheckpointEnd, Hello, Leave, Table, ToWorker
from ..job.participant import Action, Build, GiveUp, Participant, Say
from ..launcher import new_incarnation
from ..wire.requests import (
    EndCheckpointRequest,
    EndCheckpointResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterWorkerRequest,
    RegisterWorkerResponse,
    StartCheckpointRequest,
    StartCheckpointResponse,
    UnregisterWorkerRequest,
    UnregisterWorkerResponse,
)
from .driver import Driver

__all__ = ["HeartbeatWorkers"]

#: Without a heartbeat for so long a worker is gone.
_TIMEOUT_S = 30.0
#: Checkpoints that are being written.
_MOST_CHECKPOINTS = 16


class HeartbeatWorkers:
    """The workers of a job that have no stream.

    Args:
        driver: Driver of the job.
        job: Name of the job.
        most: Largest number of these workers.
    """

    def __init__(self, driver: Driver, job: str, most: int) -> None:
        self._driver = driver
        self._job = job
        self._most = most
        self._workers: dict[str, _Worker] = {}
        self._checkpoints: dict[str, _Checkpoint] = {}

    async def register(self, request: RegisterWorkerRequest, identity: str | None) -> RegisterWorkerResponse:
        """Wait until the worker is a member of an open epoch; a member of an epoch that is over thereby says that it is ready.

        Raises:
            PeerLost: the coordinator refuses the worker, or it was given up meanwhile.
        """
        _check_identity(request.worker_id, identity)
        worker = self._workers.get(request.worker_id)
        if worker is None:
            worker = self._add(request, identity)
        elif worker.is_fenced:
            self._say(worker, worker.begin_anew())
        # While the call lasts it is the sign of life.
        worker.rest()
        try:
            table = await asyncio.shield(worker.opened)
        finally:
            if self._workers.get(request.worker_id) is worker:
                worker.expect_heartbeat()
        (rank,) = (member.rank for member in table.members if member.worker_id == request.worker_id)
        return RegisterWorkerResponse(rank, tuple(member.address for member in table.members), table.epoch)

    def unregister(self, request: UnregisterWorkerRequest, identity: str | None) -> UnregisterWorkerResponse:
        """Have a worker leave.

        Raises:
            PeerLost: there is no such worker.
        """
        worker = self._find(request.worker_id, identity)
        self._driver.receive(worker.number, Leave("unregistered"), identity)
        self._remove(worker)
        return UnregisterWorkerResponse(self._epoch())

    def heartbeat(self, request: HeartbeatRequest, identity: str | None) -> HeartbeatResponse:
        """Note that a worker is alive.

        Raises:
            PeerLost: there is no such worker.
        """
        worker = self._find(request.worker_id, identity)
        worker.expect_heartbeat()
        return HeartbeatResponse("FENCED" if worker.is_fenced else "OK", self._epoch())

    def start_checkpoint(
        self, request: StartCheckpointRequest, identity: str | None
    ) -> StartCheckpointResponse:
        """Begin a checkpoint of the open epoch.

        Raises:
            PeerLost: no epoch is open, the worker is no member of it, or too many checkpoints are being written.
        """
        table = self._driver.keys.table
        if table is None:
            raise PeerLost("no epoch is open, so no checkpoint can begin; register again")
        if identity is not None and all(member.worker_id != identity for member in table.members):
            raise PeerLost(
                f'"{identity}" is no member of epoch {table.epoch}, so it begins none of its checkpoints'
            )
        self._checkpoints = {name: one for name, one in self._checkpoints.items() if one.table == table}
        if len(self._checkpoints) >= _MOST_CHECKPOINTS:
            raise PeerLost(
                f"{_MOST_CHECKPOINTS} checkpoints of epoch {table.epoch} are being written already"
            )
        name = secrets.token_hex(16)
        self._checkpoints[name] = _Checkpoint(table, request.epoch, request.path)
        return StartCheckpointResponse(name, table.epoch)

    def end_checkpoint(self, request: EndCheckpointRequest, identity: str | None) -> EndCheckpointResponse:
        """Note that a worker has written its part.

        Raises:
            PeerLost: there is no such worker or checkpoint, or its epoch is over.
        """
        worker = self._find(request.worker_id, identity)
        checkpoint = self._checkpoints.get(request.checkpoint_id)
        if checkpoint is None or checkpoint.step != request.epoch:
            raise PeerLost(
                f'checkpoint "{request.checkpoint_id[:64]}" of epoch {request.epoch} is not being written'
            )
        if checkpoint.table != self._driver.keys.table:
            raise PeerLost(
                f"the members' epoch {checkpoint.table.epoch} is over, and with it the checkpoint; start it again"
            )
        place = checkpoint.table.epoch, checkpoint.step, checkpoint.path
        self._driver.receive(worker.number, CheckpointBegin(*place), identity)
        self._driver.receive(worker.number, CheckpointEnd(*place), identity)
        checkpoint.ended.add(request.worker_id)
        if len(checkpoint.ended) >= len(checkpoint.table.members):
            del self._checkpoints[request.checkpoint_id]
        return EndCheckpointResponse(self._epoch())

    def close(self) -> None:
        """Give up all workers."""
        for worker in list(self._workers.values()):
            self._remove(worker)

    def _epoch(self) -> int:
        return self._driver.status().epoch

    def _find(self, worker_id: str, identity: str | None) -> _Worker:
        _check_identity(worker_id, identity)
        try:
            return self._workers[worker_id]
        except KeyError:
            raise PeerLost(f'worker "{worker_id}" is not registered; register it again') from None

    def _add(self, request: RegisterWorkerRequest, identity: str | None) -> _Worker:
        if len(self._workers) >= self._most:
            raise PeerLost(f"{self._most} workers without a stream are registered, the most that may be")
        hello = Hello(self._job, request.worker_id, new_incarnation(), address=request.address)
        worker = _Worker(self, hello, identity)
        worker.number = self._driver.connect(worker)
        self._workers[request.worker_id] = worker
        self._driver.receive(worker.number, worker.machine.connected(), identity)
        return worker

    def _say(self, worker: _Worker, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):
                self._driver.receive(worker.number, action.message, worker.identity)

    def _remove(self, worker: _Worker) -> None:
        worker.rest()
        worker.fail(PeerLost(f'worker "{worker.worker_id}" is not registered any more'))
        if self._workers.get(worker.worker_id) is worker:
            del self._workers[worker.worker_id]
        self._driver.gone(worker.number)


@dataclass
class _Checkpoint:
    """A checkpoint that is being written: in which epoch of the members, and at which one of the training."""

    table: Table
    step: int
    path: str
    ended: set[str] = field(default_factory=set)


class _Worker:
    """A worker without a stream; what is sent to it waits for its next request."""

    def __init__(self, owner: HeartbeatWorkers, hello: Hello, identity: str | None) -> None:
        self._owner = owner
        self.worker_id = hello.worker_id
        self.identity = identity
        self.machine = Participant(hello)
        self.number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Table] = self._loop.create_future()

    @property
    def is_fenced(self) -> bool:
        """Whether its epoch is over, or is to end after this step."""
        return self.machine.phase == "ending" or self.machine.wants_end

    def send(self, message: ToWorker, data: bytes) -> None:
        """Take a message. The worker reports no steps, so it is where its last table put it."""
        for action in self.machine.receive(message):
            match action:
                case Say():
                    self._loop.call_soon(self._owner._say, self, [action])
                case Build(table):
                    self.machine.prepared()
                    self.opened.set_result(table)
                case GiveUp(refused):
                    self.fail(PeerLost(f'worker "{self.worker_id}" was refused: {refused.text}'))

    def finish(self) -> None:
        """End the connection, after what the machine has decided is done."""
        self._loop.call_soon(self._owner._remove, self)

    def begin_anew(self) -> list[Action]:
        """Begin to wait for the next table; return what is to be said."""
        self.opened = self._loop.create_future()
        return self.machine.ended()

    def fail(self, error: PeerLost) -> None:
        """End a wait for a table."""
        if not self.opened.done():
            self.opened.set_exception(error)
            # It may be that none waits.
            self.opened.exception()

    def expect_heartbeat(self) -> None:
        """Give the worker up if no heartbeat comes in time."""
        self.rest()
        self._timer = self._loop.call_later(_TIMEOUT_S, self._owner._remove, self)

    def rest(self) -> None:
        """Expect no heartbeat."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


def _check_identity(worker_id: str, identity: str | None) -> None:
    if identity is not None and identity != worker_id:
        raise PeerLost(f'worker "{worker_id}" has proven to be "{identity}"; it can act for itself only')
