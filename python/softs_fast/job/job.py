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
from .checkpoints import Checkpoints
from .contract import contract_of
from .live_data import LiveData
from .position import Position
from .saver import Saver
from .step import JobStep, Parts

__all__ = ["Job"]

#: Variable of the environment with the address of the coordinator.
_VARIABLE = "SOFTS_FAST_COORDINATOR"
#: Longest name of a job.
_MOST_NAME_BYTES = 4096
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
        coordinator: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``, where JOB is
            `name`; None for what the variable SOFTS_FAST_COORDINATOR of the environment says, and without it this process
            is alone.
        credentials: Credentials with which this process proves what it is to the coordinator.
        seed: Seed of torch's random numbers in the micro-batches, the same on all ranks; below 2**64.
        checkpoints: Where the job writes checkpoints; it begins with the newest whole one.

    Raises:
        ConfigError: An argument is wrong; or a launcher has started this process as one of several, and there is no
            coordinator.

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
        checkpoints: Checkpoints | None = None,
    ) -> None:
        if not isinstance(data, LiveData) or not isinstance(state, TrainingState):
            raise ConfigError(
                f"a job needs LiveData and a TrainingState, got {type(data).__name__} and {type(state).__name__}"
            )
        if not isinstance(name, str) or not 0 < len(name.encode()) <= _MOST_NAME_BYTES:
            raise ConfigError(f"name must be a text of 1 to {_MOST_NAME_BYTES} bytes, got {name!r:.300}")
        if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
            raise ConfigError(
                f"checkpoints must be sf.Checkpoints(folder, every=...), got {type(checkpoints).__name__}"
            )
        self._coordinator = coordinator or os.environ.get(_VARIABLE) or None
        if self._coordinator is None:
            _check_alone()
            if credentials is not None:
                raise ConfigError(
                    f"credentials are for a coordinator, and the job has none: give coordinator= or {_VARIABLE}"
                )
        self._name, self._credentials = name, credentials
        self._data, self._state, self._checkpoints = data, state, checkpoints
        seed = whole_number("seed", seed, 0)
        if seed >> 64:
            raise ConfigError(f"seed must be below 2**64, got one of {seed.bit_length()} bits")
        self._position = Position(data.ledger, seed)
        self._parts: Parts | None = None
        self._running: ExitStack | None = None

    def __enter__(self) -> Self:
        """Load the newest checkpoint; then meet the coordinator, and wait for the first epoch.

        Raises:
            PeerLost: There is no epoch within ten minutes, or the coordinator has refused this process.
            ConfigError: The job or the checkpoint has other data than this process; its state cannot be sent to another
                one, or written; the folder of checkpoints cannot be read or written, another job is in it, or other ranks
                have begun without it; gRPC is not installed; or it was entered before.
            DamagedError: There are checkpoints, and none is whole.
        """
        if self._running is not None:
            raise ConfigError("this job has run: make another Job")
        self._running = ExitStack()
        with ExitStack() as running:
            state, position, batches = self._state, self._position, self._data.batches()
            running.callback(batches.close)
            devices = [one.device for one in state.model.parameters()] or [torch.device("cpu")]
            losses = torch.zeros((), device=devices[0])
            running.enter_context(state.carry("position in the samples", position, position.applied, losses))
            saver = None
            if self._checkpoints is not None:
                is_alone = self._coordinator is None
                saver = Saver(self._checkpoints, self._name, state, position, is_alone=is_alone)
                running.enter_context(saver).load()
            loaded = position.committed
            worker = self._make_worker()
            running.enter_context(worker)
            if position.committed < loaded:
                raise ConfigError(
                    f"this rank has loaded step {loaded}, and the job goes on at {position.committed}: all ranks must see one "
                    "folder of checkpoints"
                )
            self._parts = Parts(worker, position, batches, state, devices[0], losses, saver)
            self._running = running.pop_all()
        return self

    def _make_worker(self) -> WorkerNode | AloneWorker:
        committed = self._position.committed
        if self._coordinator is None:
            return AloneWorker(self._state, committed)
        return WorkerNode(
            self._coordinator,
            self._state,
            job=self._name,
            credentials=self._credentials,
            committed=committed,
            contract=contract_of(self._position, self._data.config, self._state),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job; after an error, the others learn of it. A checkpoint that is being written is written to its end."""
        assert self._running is not None
        self._running.__exit__(kind, error, trace)

    @property
    def rank(self) -> int:
        """This process's number among the ranks; it changes only where a step begins or ends."""
        return self._begun.worker.rank

    @property
    def size(self) -> int:
        """Number of ranks; it changes only where a step begins or ends."""
        return self._begun.worker.size

    @property
    def committed(self) -> int:
        """Steps that the weights have."""
        return self._begun.worker.committed

    def steps(self, n_steps: int) -> Iterator[JobStep]:
        """Yield steps until so many are committed; each is for one `with` block.

        A process that joins begins after the steps that the others have. A step that was not committed comes again.

        Raises:
            PeerLost: The job has ended before, or goes on without this process.
            ConfigError: The block of a step was left out.
        """
        parts = self._begun
        worker = parts.worker
        while worker.committed < whole_number("n_steps", n_steps, 0):
            if worker.is_leaving:
                raise PeerLost(f"this process has {worker.committed} of {n_steps} steps: {worker.not_ready}")
            step = JobStep(parts)
            yield step
            if not step.was_entered:
                raise ConfigError(
                    "a step of job.steps() was not begun: its body must be in a block `with step:`"
                )

    @property
    def _begun(self) -> Parts:
        if self._parts is None:
            raise ConfigError("the job has not begun: use it in a block `with sf.Job(...) as job:`")
        return self._parts


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
