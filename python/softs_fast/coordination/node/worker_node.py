"""A worker of a job: it meets the coordinator, builds an engine for each epoch, and makes steps that are safe."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

import torch

from ...collectives import ReduceOp, Strategy
from ...errors import ConfigError, DamagedError, PeerLost
from ...loader import Ranks, set_ranks_of_worker
from ...trust import Place
from ..credentials import ClientCredentials
from ..health.readiness import worker_reason
from ..job.messages import Hello, Report, Term, WorkerState
from ..job.participant import Build, state_after
from ..job.rolling import copying
from ..launcher import default_worker_id, launched_job, launched_seat, new_incarnation
from ..session.session import ORPHAN_S
from .checkpoints import record_part, verify
from .engines import EngineOf, memory_engine
from .following import Comparison, can_follow
from .step_calls import StepCalls
from .training_state import TrainingState
from .worker_link import WorkerLink
from .worker_step import Step


class WorkerNode:
    """A worker of a job, in the process that trains.

    A step of the training is `with node.step():`. The gradients are reduced at its end, and applied if all workers have
    them. If a worker dies or leaves, those that are left go on, all with the same weights: what was reduced everywhere is
    applied, else it is dropped, and the step is made again. A worker that takes its place copies weights and optimizer
    from another one. None of this loses a step, and none is applied twice.

    Args:
        coordinator: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``.
        state: State of the training: model, optimizer and what else workers copy.
        job: Name of the job; None for that of the place, else the id of torchrun or of SLURM's job, and "job" without either.
        worker_id: Name of this worker, the same after a restart; None for a name by its seat.
        seat: Number of its seat in the job, as the launcher counts; None for that of torchrun, SLURM, Kubernetes or
            MPI, and without a launcher any that is free.
        committed: Number of steps that `state` has, if it was loaded from a checkpoint.
        load: Function that loads the checkpoint at a path into `state`, for when no worker is left that has the
            weights; see `checkpoint`.
        credentials: Credentials with which the worker proves what it is.
        engine: Function that makes the engine of an epoch; None for `memory_engine`: shared memory on a host, connections
            between hosts.
        join_s: How long a call waits for an epoch, seconds.
        leave_on_sigterm: Whether the signal SIGTERM makes it leave at the end of the step; in the main thread only.
        logger: Logger of what happens to its epochs; None for a logger of this module.
        orphan_s: Seconds without a coordinator after which the next step raises PeerLost.
        contract: What this worker trains, by name: at most 128 terms, with names and values of at most 256 characters. The
            coordinator refuses a worker that differs from its job.

    Raises:
        ConfigError: an argument is wrong or contradicts the place, or gRPC is not installed.

    Example:
        >>> from softs_fast.coordination.node import TrainingState, WorkerNode
        >>> def train(coordinator, model, optimizer, batch_of):
        ...     with WorkerNode(coordinator, TrainingState(model, optimizer)) as node:
        ...         while node.committed < 1000 and not node.is_leaving:
        ...             with node.step() as step:
        ...                 model(batch_of(step.number, node.rank, node.size)).mean().backward()

    Source: own, see docs/coordination.md.
    """

    def __init__(
        self,
        coordinator: str,
        state: TrainingState,
        *,
        job: str | None = None,
        worker_id: str | None = None,
        seat: int | None = None,
        committed: int = 0,
        load: Callable[[str], object] | None = None,
        credentials: ClientCredentials | None = None,
        engine: EngineOf | None = None,
        join_s: float = 600.0,
        leave_on_sigterm: bool = False,
        logger: logging.Logger | None = None,
        orphan_s: float = ORPHAN_S,
        contract: Mapping[str, str] | None = None,
    ) -> None:
        if not join_s > 0:
            raise ConfigError(f"join_s of a worker must be seconds above 0, got {join_s}")
        self._state = state
        job = Place.parse(coordinator, "coordinator").job_or(job) or launched_job()
        self._load = load
        engine = engine or memory_engine
        self._join_s = join_s
        wanted = seat if seat is not None else launched_seat()
        self._worker_id = worker_id or default_worker_id(wanted)
        hello = Hello(
            job,
            self._worker_id,
            new_incarnation(),
            wanted,
            last=WorkerState(committed=committed),
            contract=tuple(Term(name, value) for name, value in (contract or {}).items()),
            can_follow=can_follow(engine),
        )
        self._link = WorkerLink(coordinator, hello, credentials, logger, orphan_s, state, engine)
        self._machine = self._link.machine
        # Rank and size: they stay while the body of a step runs, whatever becomes of the epoch.
        self._place = (-1, 0)
        self._is_checked = False
        # Of an epoch with followers, until its first step.
        self._comparison: Comparison | None = None
        self._calls: StepCalls | None = None
        #: Returns what this worker reports to the coordinator when it begins a step, and on `tell`; None without a report.
        self.report: Callable[[], Report] | None = None
        self._has_left = False
        self._handles_sigterm = leave_on_sigterm
        self._before_sigterm: object = None

    # --- Life ---

    def start(self) -> Self:
        """Meet the coordinator, and wait for the first epoch; return self.

        Raises:
            PeerLost: no epoch within `join_s`, or the coordinator has refused this worker.
            ConfigError: the state cannot be sent to another worker, or that of another one does not fit this one's.
        """
        self._state.check()
        if self._handles_sigterm:
            self._before_sigterm = signal.signal(signal.SIGTERM, self._terminate)
        self._link.session.start()
        self._enter()
        return self

    def leave(self, reason: str) -> None:
        """Leave at the end of this step, or of the next one; may be called from a signal handler."""
        self._link.leave_reason = reason

    def close(self) -> None:
        """Leave the job; a second call does nothing.

        It waits until the others have ended their step, 10 s at most, and 1 s without a coordinator.
        """
        self._close(leaves=True)

    def _close(self, *, leaves: bool) -> None:
        if self._has_left:
            return
        self._has_left = True
        if self._before_sigterm is not None:
            signal.signal(signal.SIGTERM, self._before_sigterm)  # type: ignore[arg-type]
        link = self._link
        with link.changed:
            if leaves and self._machine.phase not in ("away", "over"):
                link.do(self._machine.leave(self._link.leave_reason or "done", at_once=True))
                if self._machine.phase == "ending":
                    # Its own error has ended the epoch, and no other step has followed.
                    link.do(self._machine.ended())
            if leaves:
                link.wait_until_left(
                    lambda: self._machine.phase in ("member", "building", "ending", "idle") and not link.error
                )
            link.drop_engine("the worker has left")
        link.session.close()
        if link.serving is not None:
            link.serving.close()
        set_ranks_of_worker(None)

    def __enter__(self) -> Self:
        """Start it."""
        try:
            return self.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave; after an error, tell it to the others, and end as a worker that was killed.

        Its seat is kept for its restart then, and the epoch of the others is over at once.
        """
        is_failure = error is not None and not (isinstance(error, SystemExit) and not error.code)
        if is_failure and self._link.leave_reason is None:
            assert error is not None
            self._link.raised(error)
        self._close(leaves=not is_failure or self._link.leave_reason is not None)

    # --- What it knows ---

    @property
    def rank(self) -> int:
        """This worker's number in the last epoch; it changes only where a step begins or ends. -1 before the first one."""
        return self._place[0]

    @property
    def size(self) -> int:
        """Number of workers in the last epoch; it changes only where a step begins or ends. 0 before the first one."""
        return self._place[1]

    @property
    def epoch(self) -> int:
        """The number of the last epoch; 0 before the first one."""
        return self._link.epoch

    @property
    def committed(self) -> int:
        """Steps that have been applied."""
        return self._machine.state.committed

    @property
    def is_leaving(self) -> bool:
        """Whether it has left its epoch, or the job has ended: no step can follow.

        A worker that was told to leave makes one more step, by which the others know.
        """
        has_left_epoch = self._link.leave_reason is not None and self._machine.phase != "member"
        return has_left_epoch or self._link.error is not None or self._has_left

    @property
    def not_ready(self) -> str:
        """Why it has no seat in an open epoch, in words; empty if it has one."""
        return worker_reason(self._machine, self._link.error, self._has_left, self._link.session.trouble)

    @property
    def strategy(self) -> Strategy | None:
        """The collectives of the last epoch, for calls inside of a step; None before the first one.

        If a worker is lost, they raise PeerLost, and the step ends without being committed.
        """
        return self._calls

    # --- Steps ---

    def step(self) -> Step:
        """Return the next step, a context manager.

        Raises:
            PeerLost: on entering it: no epoch within `join_s`, or the coordinator has ended the job.
            ConfigError: on entering it: the state of another worker does not fit this one's, or this one has left.
        """
        return Step(self)

    def tell(self) -> None:
        """Report to the coordinator in the midst of a step."""
        assert self.report is not None
        report = self.report()
        with self._link.changed:
            self._link.do(self._machine.report(report))

    @contextmanager
    def checkpoint(self, path: str) -> Iterator[None]:
        """Write this worker's part of a checkpoint of the steps that are committed; between steps, by all workers.

        The body writes it, durably. The checkpoint counts once the bodies of all members of the epoch have ended: only
        then is it what workers load if none is left that has the weights. If the epoch ends before, it is dropped; write
        another one after the next step. The last worker records length and digest of each file, in the file
        ``manifest`` of a folder or in ``PATH.manifest``; a checkpoint that differs from it is not loaded, but the one
        before.

        Args:
            path: Path of the checkpoint, the same on each worker, and different for each checkpoint; a file or a
                folder that all workers see, or a name that is neither, such as a URL, which has no record.

        Raises:
            OSError: the record cannot be written.

        Example:
            >>> def save(node, model, path):
            ...     with node.checkpoint(path):
            ...         if node.rank == 0:
            ...             torch.save(model.state_dict(), path)
        """
        link = self._link
        with link.changed:
            epoch, step, store, table = self.epoch, self.committed, link.store, self._machine.table
            link.do(self._machine.begin_checkpoint(path))
        yield
        if store is None or table is None:
            link.logger.warning(
                "checkpoint %s of step %d does not count: this worker is in no epoch", path, step
            )
            return
        if not record_part(path, step, store, table, link.logger):
            return
        with link.changed:
            link.do(self._machine.end_checkpoint(epoch, step, path))

    def _begin(self) -> int:
        while True:
            self._enter()
            if self._link.serving is not None:
                self._link.serving.begin(self.committed)
            with self._link.changed:
                # A fence may have come since.
                if self._machine.phase == "member":
                    self._link.do(self._machine.begin(None if self.report is None else self.report()))
                    return self._machine.state.committed + 1

    def _commit(self, step: Step) -> bool:
        """Reduce and apply the gradients of a step; return whether it was committed."""
        link = self._link
        strategy = link.begin_call(step.epoch)
        if strategy is None:
            link.end_call([])
            return self._settle(step)
        try:
            if self._comparison is not None:
                comparison, self._comparison = self._comparison, None
                comparison.check(strategy)
                with link.changed:
                    self._machine.verified()
            if not step._is_reduced:
                self._state.reduce(strategy)
            with link.changed:
                self._machine.reduced()
                flag = torch.tensor(
                    [int(self._machine.wants_end or self._tell_leave())], dtype=torch.int32, device="cpu"
                )
            strategy.all_reduce(flag, ReduceOp.MAX)
            with link.changed:
                actions = self._machine.passed(is_last=bool(flag))
                has_passed = self._machine.state.committed == step.number
        except PeerLost as error:
            link.failed(str(error))
            return self._settle(step)
        except BaseException as error:
            link.raised(error)
            raise
        if not has_passed:
            # The fence came between the end of the barrier and its result.
            link.end_call([])
            return self._settle(step)
        try:
            if link.serving is not None:
                link.serving.apply(step.number, is_last=bool(flag))
            self._state.apply()
        except BaseException as error:
            self._set_weights(None)
            link.raised(error, "the step could not be applied: ")
            raise
        link.end_call(actions)
        self._check_once()
        return True

    def _set_weights(self, state: WorkerState | None) -> None:
        """Note which weights this worker has, from now on whatever becomes of its epoch; None for no valid ones."""
        with self._link.changed:
            table = self._machine.table
            self._machine.state = state or WorkerState(0 if table is None else table.boot)

    def _check_once(self) -> None:
        """After the first step, tell people if no worker could copy the state: optimizers make theirs in that step."""
        if self._is_checked:
            return
        self._is_checked = True
        try:
            self._state.check()
        except Exception as error:  # of the user's state_dict, too: this worker goes on
            self._link.logger.error(
                "a worker that is replaced could not copy the state of this training: %s", error
            )

    def _settle(self, step: Step) -> bool:
        """Wait for the table that says what becomes of a step; its gradients are kept until then."""
        if self._machine.state.in_doubt:
            self._enter()
        self._state.drop_gradients()
        state = self._machine.state
        # Weights of a follower were compared with none yet.
        return state.committed >= step.number and not state.is_lost

    # --- Epochs ---

    def _enter(self) -> None:
        """Wait until this worker is a member of an epoch, and has its weights."""
        end_s = time.monotonic() + self._join_s
        while (found := self._link.next_build(end_s, self._join_s)) is not None:
            if isinstance(found, Build):
                self._prepare(found)
            else:
                self._link.follow(found)
                end_s = time.monotonic() + self._join_s

    def _prepare(self, build: Build) -> None:
        link, table = self._link, build.table
        after = state_after(table, build.rank)
        followed = self._machine.followed_step
        try:
            if build.rank in table.followers and followed != table.resume_step:
                raise PeerLost(f"this worker has followed to step {followed}, not to {table.resume_step}")
            if build.duty in ("keep", "apply") and self._machine.state.is_lost:
                if table.resume_step:
                    raise PeerLost("this worker had begun to copy the state of another one")
                raise ConfigError(
                    "no worker has valid weights from which this one could copy: its own were lost when a step could not "
                    "be applied, or a state or checkpoint not be loaded; restart the job from a checkpoint"
                )
            if build.duty == "apply":
                try:
                    self._state.apply()
                except BaseException:
                    self._set_weights(None)
                    raise
                with link.changed:
                    self._machine.applied()
            elif build.duty == "load":
                if self._load is None:
                    raise ConfigError(
                        f'no worker has the weights, and all are to load checkpoint "{table.checkpoint}"; give load='
                    )
                verify(table, build.rank)
                self._set_weights(None)
                self._load(table.checkpoint)
            self._state.drop_gradients()
            ranks = copying(table)
            if build.rank in ranks and len(ranks) < len(table.members):
                # The others receive nothing. It is closed before that of all is made: a process may have one only.
                strategy = link.join(build, ranks, "copy/")
                self._copy(strategy, ranks.index(table.source_rank), is_follower=bool(table.followers))
                strategy.barrier()
                link.close_engine()
            strategy = link.join(build, range(len(table.members)))
            self._calls = StepCalls(link, table.epoch, strategy)
            self._place = (strategy.rank, strategy.size)
            # Loaders take the samples of this rank: torch.distributed knows nothing of it.
            set_ranks_of_worker(Ranks(*self._place))
            if len(ranks) == len(table.members):
                self._copy(strategy, ranks.index(table.source_rank), is_follower=bool(table.followers))
                if build.duty == "copy":
                    self._set_weights(after)
            strategy.barrier()
            if build.duty in ("copy", "load"):
                # If the epoch ends before, those that have the state go on. Each has verified some files, now all have.
                self._set_weights(after)
            self._comparison = Comparison(table, build.rank, self._state) if table.followers else None
        except PeerLost as error:
            link.failed(str(error))
            return
        except DamagedError as error:
            with link.changed:
                link.do(self._machine.damaged())
            link.logger.error("%s", error)
            link.failed(str(error))
            return
        except BaseException as error:
            link.raised(error)
            raise
        with link.changed:
            self._machine.prepared()
        link.end_call([])

    def _copy(self, strategy: Strategy, source: int, *, is_follower: bool) -> None:
        """Copy the state of rank `source` to all others of a strategy, which may be followers; a call of all its ranks."""
        if strategy.rank == source:
            refusal = self._state.send(strategy, to_followers=is_follower)
            if refusal:
                self._link.logger.error("a new worker cannot copy the state of this one: %s", refusal)
            return
        states = self._state.receive(strategy, source, is_follower=is_follower)
        self._set_weights(None)
        self._state.load(states)

    def _tell_leave(self) -> bool:
        """Say that this worker leaves, if it was told to; with the lock. Return whether it does."""
        if self._link.leave_reason is None:
            return False
        self._link.do(self._machine.leave(self._link.leave_reason))
        return True

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.leave("SIGTERM")
