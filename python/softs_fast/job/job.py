"""A training on live data: with ranks that come and go, or alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch

from ..coordination import ClientCredentials, launched_seat
from ..coordination.node import TrainingState, WorkerNode
from ..errors import ConfigError, PeerLost
from ..loader import whole_number
from ..tensors import is_distributed
from .checkpoints import Checkpoints
from .contract import check_ranks, contract_of
from .group_worker import GroupWorker
from .live_data import LiveData
from .peers import Peers
from .position import Position
from .saver import Saver
from .sharded_state import ShardedState
from .step import JobStep, Parts
from .whole_state import WholeState

__all__ = ["Job", "check_launched", "checked_position"]

#: Variable of the environment with the address of the coordinator.
_VARIABLE = "SOFTS_FAST_COORDINATOR"
#: Longest name of a job.
_MOST_NAME_BYTES = 4096
#: Numbers of processes that launchers have started.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Job:
    """A training that trains each sample number of its committed steps exactly once, whatever ranks and suppliers die.

    With a coordinator, the same script runs in as many processes as there are ranks; each may be killed, and others may
    join. All ranks have all weights. Without a coordinator the ranks are those of torch.distributed, which start again
    together when one is lost, and go back to the last checkpoint; the model, in DistributedDataParallel or sharded by
    `fully_shard`, reduces its gradients. Without either this process is the only one. A step has the same samples on any
    number of ranks, in micro-batches that ranks share out among them.

    Args:
        name: Name of the job.
        data: Samples of the job.
        state: Model and optimizer.
        coordinator: Place of the coordinator, HOST:PORT or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``, where JOB is
            `name`; None for what the variable SOFTS_FAST_COORDINATOR of the environment says, and without it there is none.
        credentials: Credentials with which this process proves what it is to the coordinator.
        seed: Seed of torch's random numbers in the micro-batches, the same on all ranks; below 2**64.
        checkpoints: Where the job writes checkpoints; it begins with the newest whole one.

    Raises:
        ConfigError: An argument is wrong; or a launcher has started this process as one of several, and there is neither
            a coordinator nor a process group of torch.distributed.

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
        if not isinstance(state, TrainingState):
            raise ConfigError(f"a job needs a TrainingState, got {type(state).__name__}")
        self._position = checked_position(name, data, checkpoints, seed)
        self._coordinator = coordinator or os.environ.get(_VARIABLE) or None
        if self._coordinator is None:
            check_launched()
            if credentials is not None:
                raise ConfigError(
                    f"credentials are for a coordinator, and the job has none: give coordinator= or {_VARIABLE}"
                )
        self._name, self._credentials = name, credentials
        self._data, self._state, self._checkpoints = data, state, checkpoints
        self._parts: Parts | None = None
        self._running: ExitStack | None = None

    def __enter__(self) -> Self:
        """Load the newest checkpoint; then meet the coordinator, and wait for the first epoch.

        Raises:
            PeerLost: There is no epoch within ten minutes, or the coordinator has refused this process.
            ConfigError: The job or the checkpoint has other data than this process; its state cannot be sent to another
                one, or written; the folder of checkpoints cannot be read or written, another job is in it, or other ranks
                have begun without it; ranks of torch.distributed differ in what they train, or would have unequal shares;
                gRPC is not installed; or it was entered before.
            DamagedError: There are checkpoints, and none is whole.
        """
        if self._running is not None:
            raise ConfigError("this job has run: make another Job")
        self._running = ExitStack()
        with ExitStack() as running:
            state, position, batches = self._state, self._position, self._data.batches()
            running.callback(batches.close)
            device = next(map(_computes_on, state.model.parameters()), torch.device("cpu"))
            losses = torch.zeros((), device=device)
            running.enter_context(state.carry("position in the samples", position, position.applied, losses))
            is_alone = self._coordinator is None
            peers = Peers.of_process() if is_alone else Peers()
            running.callback(peers.close)
            # What decides which calls of all ranks they make; ranks of a coordinator make none for a checkpoint.
            calls = {
                "checkpoints every": str(self._checkpoints and self._checkpoints.every),
                "optimizer": type(state.optimizer).__qualname__,
            }
            check_ranks(peers, self._contract() | calls, position.ledger.n_micro_batches)
            saver = self._make_saver(peers, is_alone)
            if saver is not None:
                running.enter_context(saver)
                saver.load()
            loaded = position.committed
            worker = GroupWorker(state, loaded, peers, losses) if is_alone else self._make_worker()
            running.enter_context(worker)
            if position.committed < loaded:
                raise ConfigError(
                    f"this rank has loaded step {loaded}, and the job goes on at {position.committed}: all ranks must see one "
                    "folder of checkpoints"
                )
            self._parts = Parts(worker, position, batches, state, device, losses, saver)
            running.callback(self._parts.guard.remove)
            self._running = running.pop_all()
        return self

    def _contract(self) -> dict[str, str]:
        return contract_of(self._position, self._data.config, self._state.model)

    def _make_saver(self, peers: Peers, is_alone: bool) -> Saver | None:
        options, state = self._checkpoints, self._state
        if options is None:
            return None
        # With a coordinator each rank has all weights, and what is sharded is refused.
        is_sharded = is_alone and any(is_distributed(one) for one in state.model.parameters())
        files = ShardedState(state, peers) if is_sharded else WholeState(state)
        return Saver(options, self._name, files, self._position, peers, is_alone=is_alone)

    def _make_worker(self) -> WorkerNode:
        assert self._coordinator is not None
        return WorkerNode(
            self._coordinator,
            self._state,
            job=self._name,
            credentials=self._credentials,
            committed=self._position.committed,
            contract=self._contract(),
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
        n_steps = whole_number("n_steps", n_steps, 0)
        while worker.committed < n_steps:
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


def _computes_on(parameter: torch.Tensor) -> torch.device:
    """Return the device that a parameter is used on; FSDP2 may keep its part in host memory."""
    return torch.device(parameter.device_mesh.device_type) if is_distributed(parameter) else parameter.device


def checked_position(name: str, data: LiveData, checkpoints: Checkpoints | None, seed: int) -> Position:
    """Return where a job begins.

    Raises:
        ConfigError: An argument of the job is wrong.
    """
    if not isinstance(data, LiveData):
        raise ConfigError(f"a job needs LiveData, got {type(data).__name__}")
    if not isinstance(name, str) or not 0 < len(name.encode()) <= _MOST_NAME_BYTES:
        raise ConfigError(f"name must be a text of 1 to {_MOST_NAME_BYTES} bytes, got {name!r:.300}")
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        raise ConfigError(
            f"checkpoints must be sf.Checkpoints(folder, every=...), got {type(checkpoints).__name__}"
        )
    if whole_number("seed", seed, 0) >> 64:
        raise ConfigError(f"seed must be below 2**64, got one of {seed.bit_length()} bits")
    return Position(data.ledger, int(seed))


def check_launched() -> None:
    """Refuse to be alone beside others, which would train the same samples.

    Raises:
        ConfigError: There are others, and torch.distributed does not know them.
    """
    if Peers.are_several():
        return
    seat, others = launched_seat(), ""
    sizes = [f"{name} is {os.environ[name]}" for name in _SIZES if os.environ.get(name, "1") not in ("", "1")]
    if sizes:
        others = sizes[0]
    elif seat:
        others = f"a launcher has started this process as number {seat}, counted from 0"
    if others:
        raise ConfigError(
            f"{others}, and the job has no coordinator, so each process would train all samples by itself: start `softs-fast "
            f"coordinator run`, and give coordinator= or {_VARIABLE}; or call torch.distributed.init_process_group before, in "
            "one group of all of them"
        )
