"""The worker of a job of one process: as `WorkerNode`, without a coordinator, a collective or a message."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ..coordination.node import TrainingState
from ..errors import ConfigError

__all__ = ["AloneStep", "AloneWorker"]


class AloneWorker:
    """A worker that is all of its job.

    Args:
        state: State of the training.
        committed: Steps that the state has.
    """

    rank, size, epoch = 0, 1, 1
    #: It is always a member.
    not_ready = ""
    is_leaving = False

    def __init__(self, state: TrainingState, committed: int) -> None:
        self.state = state
        self.committed = committed
        # Whether a step was applied in part.
        self.is_lost = False

    def step(self) -> AloneStep:
        """Return the next step, a context manager."""
        return AloneStep(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left to do."""


class AloneStep:
    """A step; its gradients are applied at its end."""

    def __init__(self, worker: AloneWorker) -> None:
        self._worker = worker
        self.number, self.epoch = worker.committed + 1, worker.epoch
        self.is_committed = False

    def __enter__(self) -> Self:
        if self._worker.is_lost:
            raise ConfigError(
                f"the weights are not valid any more: step {self.number} could not be applied, and may be in them in part"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Apply the gradients; drop them after an error."""
        if error is not None:
            self._worker.state.drop_gradients()
            return False
        self._worker.is_lost = True
        self._worker.state.apply()
        self._worker.is_lost = False
        self._worker.committed += 1
        self.is_committed = True
        return True
