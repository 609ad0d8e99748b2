"""Membership without an engine: a process that is told of epochs, and does what it likes in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ...errors import DamagedError, PeerLost, SoftsError
from ...loader import Ranks, set_ranks_of_worker
from ...trust import Place
from ...user_code import text_of_error
from ..credentials import ClientCredentials
from ..health.readiness import worker_reason
from ..job.messages import (
    CheckpointBegin,
    CheckpointEnd,
    Fence,
    Hello,
    Step,
    Table,
    ToWorker,
    WorkerState,
)
from ..job.options import MAX_TEXT
from ..job.participant import Action, Build, EndEngine, Say
from ..launcher import default_worker_id, launched_job, new_incarnation
from ..session.session import ORPHAN_S
from ..session.store import SessionStore
from .checkpoints import record_part, verify
from .exchange import wait_for_members
from .link import TICK_S, Link

__all__ = ["Epoch", "Membership"]

_log = logging.getLogger(__name__)

#: A fence comes within milliseconds of the end of its epoch.
_FENCE_S = 1.0


@dataclass(frozen=True)
class Epoch:
    """An epoch, as one of its members sees it.

    Attributes:
        table: Members of the epoch, and what they begin with.
        rank: Rank of this worker.
        store: Store of the members; its calls raise PeerLost when the epoch has ended.
    """

    table: Table
    rank: int
    store: SessionStore

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.table.members)

    def meet(self, timeout_s: float) -> None:
        """Wait until all members have called this.

        Raises:
            PeerLost: the epoch is over, or not all have in time.
        """
        wait_for_members(self.store, self.size, timeout_s)


class Membership:
    """A worker of a job that keeps nothing from one epoch to the next: all members begin with the last checkpoint.

    It is for what restarts when a member is lost: the agents of torchrun, or a model of which each member has a part.
    `WorkerNode` is for models of which each member has all.

    Args:
        coordinator: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``.
        job: Name of the job; None for that of the place, else the id of torchrun or of SLURM's job, and "job" without either.
        worker_id: Name of this worker, the same after a restart; None for a name by its seat.
        seat: Number of its seat in the job; None for any that is free.
        address: Address at which other members reach this one, for their information.
        credentials: Credentials with which the worker proves what it is.
        on_end: Function called with the reason when an epoch ends, at once, from another thread: to end calls that
            wait for other members. It must not call this object.
        logger: Logger of what happens to its epochs; None for a logger of this module.
        orphan_s: Seconds without a coordinator after which the epoch is over and the worker takes part in none any more.

    Raises:
        ConfigError: an argument is wrong or contradicts the place, or gRPC is not installed.

    Example:
        >>> from softs_fast.coordination.node import Membership
        >>> def train(coordinator, run):
        ...     with Membership(coordinator) as member:
        ...         epoch = member.next_epoch(600.0)
        ...         while not run(epoch.rank, epoch.size, epoch.store, epoch.table.checkpoint):
        ...             epoch = member.next_epoch(600.0)

    Source: own, see docs/coordination.md.
    """

    def __init__(
        self,
        coordinator: str,
        *,
        job: str | None = None,
        worker_id: str | None = None,
        seat: int | None = None,
        address: str = "",
        credentials: ClientCredentials | None = None,
        on_end: Callable[[str], object] | None = None,
        logger: logging.Logger | None = None,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        self._job = job = Place.parse(coordinator, "coordinator").job_or(job) or launched_job()
        self._worker_id = worker_id or default_worker_id(seat)
        hello = Hello(job, self._worker_id, new_incarnation(), seat, address)
        self._link = _MemberLink(coordinator, hello, credentials, logger or _log, orphan_s)
        self._link.on_end = on_end
        self._machine, self._changed = self._link.machine, self._link.changed
        self._has_left = False

    # --- Life ---

    def start(self) -> Self:
        """Begin to connect; returns at once."""
        self._link.session.start()
        return self

    def close(self, reason: str = "done", *, leaves: bool = True) -> None:
        """End the connection; a second call does nothing. It waits 10 s at most, and 1 s without a coordinator.

        Args:
            reason: Reason, as text for the other members.
            leaves: Whether the worker leaves the job for good. If not, it is lost as one that was killed, and the
                coordinator waits for another process in its place.
        """
        if self._has_left:
            return
        self._has_left = True
        with self._changed:
            if leaves and self._machine.phase not in ("away", "over"):
                self._link.do(self._machine.leave(reason, at_once=True))
                self._link.end()
                self._link.wait_until_left(lambda: self._machine.phase != "over" and self._link.error is None)
            self._link.epoch = None
        self._link.session.close()
        set_ranks_of_worker(None)

    def __enter__(self) -> Self:
        """Begin to connect."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job; after an error, tell it to the others, and only end the connection."""
        if error is not None:
            with self._changed:
                self._link.say_fault(text_of_error(error))
        self.close(leaves=error is None)

    # --- Epochs ---

    @property
    def fence(self) -> Fence | None:
        """Why the epoch is over, or is to be over; None if it goes on."""
        return self._link.fence

    @property
    def is_over(self) -> bool:
        """Whether there will be no epoch any more: this worker has left, or the coordinator has refused it."""
        return self._has_left or self._link.error is not None

    @property
    def not_ready(self) -> str:
        """Why it has no seat in an open epoch, in words; empty if it has one."""
        return worker_reason(self._machine, self._link.error, self._has_left, self._link.session.trouble)

    def next_epoch(self, timeout_s: float, reason: str = "a member begins anew") -> Epoch:
        """Give up the present epoch, if there is one, and wait for the next one.

        No call of the present one may be pending, nor may one write to anything any more. The checkpoint of the next one
        is verified; if it is damaged, the epoch after that one has an older checkpoint.

        Args:
            timeout_s: how long to wait.
            reason: the reason for giving it up, for the others, if it is not over yet.

        Raises:
            PeerLost: there was none in time, or there will be none.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            epoch = self._next_epoch(end_s, reason)
            if epoch.table.source_rank is not None or not epoch.table.checkpoint:
                return epoch
            try:
                verify(epoch.table, epoch.rank)
                left_s = max(0.0, end_s - time.monotonic())
                wait_for_members(epoch.store, epoch.size, left_s, "sure of the checkpoint")
                return epoch
            except DamagedError as error:
                reason = str(error)
                self._link.logger.error("%s", reason)
                with self._changed:
                    self._link.do(self._machine.damaged())
            except PeerLost:
                # The store may tell that the epoch is over before its fence comes.
                with self._changed:
                    if not self._link.wait_for(lambda: self._link.fence or self._link.error, _FENCE_S):
                        raise

    def _next_epoch(self, end_s: float, reason: str) -> Epoch:
        link = self._link
        link.session.check_process()
        with self._changed:
            if link.epoch is not None:
                if link.fence is None:
                    link.say_fault(reason)
                link.end()
            while link.build is None:
                if link.error is not None:
                    raise link.error
                if self._has_left:
                    raise PeerLost(f'worker "{self._worker_id}" has left the job')
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise PeerLost(
                        f'worker "{self._worker_id}" is in no epoch in time; {link.session.advice}'
                    )
                self._changed.wait(min(left_s, TICK_S))
            build, link.build = link.build, None
            self._machine.prepared()
            epoch = Epoch(build.table, build.rank, SessionStore(link.session, self._job, build.table))
            link.epoch = epoch
            # Loaders take the samples of this rank, whether torch.distributed knows of it or not.
            set_ranks_of_worker(Ranks(epoch.rank, epoch.size))
            return epoch

    def progress(self, step: int) -> None:
        """Tell which step this member begins: the coordinator names members that stand still.

        Args:
            step: its number, from 1.
        """
        with self._changed:
            if self._link.epoch is not None:
                table = self._link.epoch.table
                self._machine.state = WorkerState(table.boot, table.epoch, step - 1)
                self._link.session.send(Step(table.epoch, step))

    @contextmanager
    def checkpoint(self, path: str, step: int) -> Iterator[None]:
        """Write this member's part of a checkpoint, durably, in the body; by all members, as `WorkerNode.checkpoint`.

        The next table names it only if the bodies of all members end before the epoch does; `next_epoch` verifies it.

        Args:
            path: Path of the checkpoint, as there.
            step: Step of the checkpoint.

        Raises:
            OSError: the record cannot be written.
        """
        with self._changed:
            epoch = self._link.epoch
            number = 0 if epoch is None else epoch.table.epoch
            self._link.session.send(CheckpointBegin(number, step, path))
        yield
        if epoch is None or not record_part(path, step, epoch.store, epoch.table, self._link.logger):
            return
        with self._changed:
            self._link.session.send(CheckpointEnd(number, step, path))


class _MemberLink(Link):
    """The link of a member; what follows is called with the lock."""

    on_end: Callable[[str], object] | None = None
    #: The present epoch; None without one.
    epoch: Epoch | None = None
    #: Why it is over, or is to be over.
    fence: Fence | None = None

    def say_fault(self, reason: str) -> None:
        """Tell why this worker gives up the epoch, if it is in one."""
        # Its other action tells of the end of the engine, which is known here.
        actions = self.machine.fail(reason, self.machine.rank)
        self.do([action for action in actions if isinstance(action, Say)])

    def end(self) -> None:
        """Say that nothing of the epoch is pending."""
        self.epoch = None
        # Nothing is kept, so it is no survivor of the epoch.
        self.machine.state = WorkerState()
        self.do(self.machine.ended())

    def do(self, actions: list[Action]) -> None:
        """Do what the machine wants; a new epoch has no fence yet."""
        if any(isinstance(action, Build) for action in actions):
            self.fence = None
        super().do(actions)

    def end_engine(self, fence: Fence) -> None:
        """Tell that the epoch is over."""
        self.fence = self.fence or fence
        if self.build is not None:
            # Nothing of it has begun.
            self.build = None
            self.end()
        elif self.on_end is not None:
            self.on_end(fence.text)

    def received(self, message: ToWorker) -> None:
        """Take a message; the machine has no action for a fence that is planned."""
        with self.changed:
            super().received(message)
            if isinstance(message, Fence) and self.machine.table is not None and self.machine.wants_end:
                self.fence = self.fence or message

    def ended(self, error: SoftsError) -> None:
        """Note that there will be no connection: what runs in the epoch would not learn of it by a fence."""
        with self.changed:
            super().ended(error)
            table = self.machine.table
            if self.epoch is not None and self.fence is None and table is not None:
                text = str(error)[:MAX_TEXT]
                fence = Fence(table.boot, table.epoch, "coordinator", self.machine.seat, text)
                self.do([EndEngine(fence)])
