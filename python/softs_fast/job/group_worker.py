"""The worker of a job without a coordinator: as `WorkerNode`, for ranks that are lost together, or for one process."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Self

import torch

from ..coordination.node import TrainingState
from ..errors import ConfigError
from ..tensors import is_distributed
from .peers import Peers

__all__ = ["GroupStep", "GroupWorker"]


class GroupWorker:
    """A rank of torch.distributed, in which the model itself reduces gradients; or all of a job.

    Args:
        state: State of the training.
        committed: Steps that the state has.
        peers: Ranks of the job.
        losses: Losses of this rank's micro-batches, float32 []; a step replaces it by the mean over the ranks.
    """

    epoch = 1
    #: It is always a member.
    not_ready = ""
    is_leaving = False

    def __init__(self, state: TrainingState, committed: int, peers: Peers, losses: torch.Tensor) -> None:
        self.state = state
        self.committed = committed
        self.peers, self.losses = peers, losses
        self.rank, self.size = peers.rank, peers.size
        # Why no step can follow, else "".
        self.ended_by = ""
        # Whether gradients of ranks were compared, of the parameters that all ranks have whole.
        self.is_checked = False
        self._replicated = [one for one in state.model.parameters() if not is_distributed(one)]

    def step(self) -> GroupStep:
        """Return the next step, a context manager."""
        return GroupStep(self)

    def check_gradients(self) -> None:
        """Refuse ranks that each have gradients of their own samples only; a call of all ranks.

        Raises:
            ConfigError: Gradients differ between ranks.
        """
        if self.is_checked:
            return
        sums = [
            None if one.grad is None else float(one.grad.sum(dtype=torch.float64)) for one in self._replicated
        ]
        digest = hashlib.sha256(repr(sums).encode()).hexdigest()
        if self.peers.largest(digest != self.peers.of_first(digest)):
            raise ConfigError(
                f"the gradients of the {self.size} ranks of torch.distributed differ, so each rank would train a model of its "
                "own: wrap the model in DistributedDataParallel, or give it to fully_shard; or start a coordinator, for "
                "ranks that reduce gradients without torch.distributed"
            )
        self.is_checked = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to do."""


class GroupStep:
    """A step; the gradients, which the model has reduced, are applied at its end."""

    def __init__(self, worker: GroupWorker) -> None:
        self._worker = worker
        self.number, self.epoch = worker.committed + 1, worker.epoch
        self.is_committed = False

    def __enter__(self) -> Self:
        if self._worker.ended_by:
            raise ConfigError(self._worker.ended_by)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Apply the gradients; drop them after an error.

        Raises:
            ConfigError: Gradients differ between ranks.
        """
        worker = self._worker
        if error is not None:
            self._drop()
            return False
        try:
            worker.check_gradients()
            worker.peers.mean(worker.losses)
        except BaseException:
            self._drop()
            raise
        try:
            worker.state.apply()
        except BaseException:
            worker.ended_by = f"the weights are not valid any more: step {self.number} could not be applied, and may be in them in part"
            raise
        worker.committed += 1
        self.is_committed = True
        return True

    def _drop(self) -> None:
        worker = self._worker
        worker.state.drop_gradients()
        if worker.size > 1:
            # They reduce what this rank has left out.
            worker.ended_by = (
                f"step {self.number} has failed on this rank, and the others may wait for it in that step: let its error end "
                "the process, so that all ranks begin again"
            )
