"""A step of a worker, as its program sees it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from ...errors import PeerLost

if TYPE_CHECKING:
    from .worker_node import WorkerNode

# A loss that a call in the body of a step has met is known to the coordinator within two pings, and a blink.
_EXPLAIN_S = 3.0


class Step:
    """A step of a training: its body computes gradients, its end reduces and applies them.

    Attributes:
        number: Number of the step, from 1; the number of committed steps after it.
        epoch: Number of the epoch in which the step was begun.
        is_committed: Whether the step was applied, known after its end. If not, it is to be made again.
    """

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        self.number = self.epoch = 0
        self.is_committed = self._is_reduced = False

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the last gradients of the step, and reduce all meanwhile: on return they are the means of all workers.

        Raises:
            ConfigError: A gradient cannot be reduced, or the workers have different parameters.
            PeerLost: A worker was lost; the step is made again.
        """
        calls = self._node._calls
        assert calls is not None, "a step begins in an epoch"
        with calls.call() as strategy:
            self._node._state.backward(strategy, loss)
        self._is_reduced = True

    def __enter__(self) -> Self:
        """Wait for an epoch, and begin the step."""
        self.number = self._node._begin()
        self.epoch = self._node.epoch
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Reduce the gradients, and apply them; a loss of other workers in the body is no error, either."""
        # A call may meet a loss before the coordinator does.
        is_loss = isinstance(error, PeerLost) and self._node._link.is_over_within(self.epoch, _EXPLAIN_S)
        if error is not None and not is_loss:
            # What the body has added up so far is no part of the step that is made again.
            self._node._state.drop_gradients()
            self._node._link.raised(error)
            return False
        self.is_committed = self._node._commit(self)
        return True
