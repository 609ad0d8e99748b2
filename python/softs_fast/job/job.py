"""A training on live data: with ranks that come and go, or alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch
import torch.distributed

from ..coordination import ClientCredentials, launched_seat
from ..coordination.node import TrainingState, WorkerNode
from ..errors import ConfigError, PeerLost
from ..loader import whole_number
from .alone import AloneWorker
from .live_data import LiveData
from .position import Position
from .step import JobStep, Parts

__all__ = ["Job"]

#: Variable of the environment with the address of the coordinator.
_VARIABLE = "SOFTS_FAST_COORDINATOR"
#: Numbers of processes that launchers have started.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Job:
    """A training that trains each sample number of its committed steps exactly once, whatever ranks and suppliers die.

    With a coordinator, the same script runs in as many processes as there are ranks; each may be killed, and others may
    join. All ranks have all weights. A step has the same samples on any number of ranks, in micro-batches that ranks share
    out among them. Without a coordinator this process is the only one.

    Args:
        name: Name of the job.
        data: Samples of the job.
        state: Model and optimizer.
        coordinator: Address of the coordinator, ``host:port``; None for what the variable SOFTS_FAST_COORDINATOR of the
            environment says, and without it this process is alone.
        credentials: Credentials with which this process proves what it is to the coordinator.
        seed: Seed of torch's random numbers in the micro-batches, the same on all ranks.

    Raises:
        ConfigError: An argument is wrong; gRPC is not installed; or a launcher has started this process as one of several,
            and there is no coordinator.

    Example:
        >>> import softs_fast as sf
        >>> def train(data, student, optimizer):
        ...     with sf.Job("digits", data, sf.TrainingState(student, optimizer)) as job:
        ...         for step in job.steps(400):
        ...             with step:
        ...                 for batch in step.batches():
        ...                     step.backward(student(**batch)["loss"])

    Source: own, see docs/job.md.
    """

    def __init__(
        self,
        name: str,
        data: LiveData,
        state: TrainingState,
        *,
        coordinator: str | None = None,
        credentials: ClientCredentials | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(data, LiveData) or not isinstance(state, TrainingState):
            raise ConfigError(
                f"a job needs LiveData and a TrainingState, got {type(data).__name__} and {type(state).__name__}"
            )
        coordinator = coordinator or os.environ.get(_VARIABLE) or None
        self._state = state
        self._position = Position(data.ledger, whole_number("seed", seed, 0))
        self._worker: WorkerNode | AloneWorker
        if coordinator is None:
            _check_alone()
            self._worker = AloneWorker(state)
        else:
            self._worker = WorkerNode(coordinator, state, job=name, credentials=credentials)
        devices = [one.device for one in state.model.parameters()] or [torch.device("cpu")]
        self._parts = Parts(self._worker, self._position, data.batches(), state, devices[0])
        self._running: ExitStack | None = None

    def __enter__(self) -> Self:
        """Meet the coordinator, and wait for the first epoch.

        Raises:
            PeerLost: There is no epoch within ten minutes, or the coordinator has refused this process.
            ConfigError: The job has other data than this process, its state cannot be sent to another one, or it was
                entered before.
        """
        if self._running is not None:
            raise ConfigError("this job has run: make another Job")
        self._running = ExitStack()
        with ExitStack() as running:
            running.callback(self._parts.batches.close)
            position, losses = self._position, self._parts.losses
            running.enter_context(
                self._state.carry("position in the samples", position, position.applied, losses)
            )
            running.enter_context(self._worker)
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job; after an error, the others learn of it."""
        assert self._running is not None
        self._running.__exit__(kind, error, trace)

    @property
    def rank(self) -> int:
        """This process's number among the ranks; it changes only where a step begins or ends."""
        return self._worker.rank

    @property
    def size(self) -> int:
        """Number of ranks; it changes only where a step begins or ends."""
        return self._worker.size

    @property
    def committed(self) -> int:
        """Steps that the weights have."""
        return self._worker.committed

    def steps(self, n_steps: int) -> Iterator[JobStep]:
        """Yield steps until so many are committed; each is for one `with` block.

        A process that joins begins after the steps that the others have. A step that was not committed comes again.

        Raises:
            PeerLost: The job has ended before, or goes on without this process.
            ConfigError: The block of a step was left out.
        """
        while self._worker.committed < whole_number("n_steps", n_steps, 0):
            if self._worker.is_leaving:
                raise PeerLost(
                    f"this process has {self._worker.committed} of {n_steps} steps: {self._worker.not_ready}"
                )
            step = JobStep(self._parts)
            yield step
            if not step.was_entered:
                raise ConfigError(
                    "a step of job.steps() was not begun: its body must be in a block `with step:`"
                )


def _check_alone() -> None:
    """Refuse to be alone beside others, which would train the same samples.

    Raises:
        ConfigError: There are others.
    """
    seat, others = launched_seat(), ""
    sizes = [f"{name} is {os.environ[name]}" for name in _SIZES if os.environ.get(name, "1") not in ("", "1")]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        n = torch.distributed.get_world_size()
        others = f"torch.distributed has {n} ranks" if n > 1 else ""
    elif sizes:
        others = sizes[0]
    elif seat:
        others = f"a launcher has started this process as number {seat}, counted from 0"
    if others:
        raise ConfigError(
            f"{others}, and the job has no coordinator, so each process would train all samples by itself: start `softs-fast "
            f"coordinator run`, and give coordinator= or {_VARIABLE}"
        )
