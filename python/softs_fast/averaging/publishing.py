"""When a rank makes snapshots of its weights for the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from softs_fast.averaging.board import Board
from softs_fast.averaging.shards import Shards
from softs_fast.averaging.shared_model import SharedModel


class Publishing:
    """Publishes a model: every so many steps, when another rank asks, and soon after the weights were replaced.

    No snapshot begins sooner than twice the time of the last one after its end.

    Args:
        board: Board that gets the snapshots.
        shared: The model.
        shards: The processes that have its shards; they publish in the same steps.
        every: Steps from one snapshot to the next.
        clock: Function that returns the time, seconds.
    """

    def __init__(
        self,
        board: Board,
        shared: SharedModel,
        shards: Shards,
        every: int,
        clock: Callable[[], float],
    ) -> None:
        self._board = board
        self._shared = shared
        self._shards = shards
        self._every = every
        self._clock = clock
        #: Of the last snapshot.
        self.version = 0
        self._must_publish = True
        self._not_before = -math.inf
        # What the others see, which may be of the weights before a replacement.
        self._metric: float | None = None
        # The first version of the weights that there are.
        self._first = 1

    def follow(self) -> None:
        """Have the board copy beside the training what changes in steps of the optimizer alone.

        Shards are copied in the call, as a copy that one of them is not ready for would be of another step.
        """
        optimizer = self._shared.trainee.optimizer if self._shards.is_alone else None
        self._board.follow(optimizer, self._shared.late_names())

    def begin_anew(self) -> None:
        """Publish as soon as possible, since the weights are others than before."""
        self._must_publish = True
        self._not_before = -math.inf
        self._first = self.version + 1

    def is_finite(self) -> bool:
        """Return whether the weights are finite; if a thread looks at snapshots, whether the last one was."""
        inspected = self._board.inspected()
        if inspected is None:
            return self._shared.is_finite()
        version, is_finite = inspected
        return is_finite or version < self._first

    def offer(
        self, *, step: int, metric: float | None, trained: int, config: Mapping[str, Any] | None
    ) -> bool:
        """Make a snapshot, if it is time for one; return whether one was begun."""
        self._must_publish |= step % self._every == 0 or self._board.is_asked()
        start = self._clock()
        said = self._shards.gather((self._must_publish, start >= self._not_before))
        if not any(must for must, _ in said) or not all(may for _, may in said):
            return False
        self._metric = self._metric if metric is None else metric
        version = self._board.publish(
            self._shared.tensors(), step=step, metric=self._metric, trained=trained, config=config
        )
        if version == self.version:  # the one before is still copied
            return False
        self.version = version
        self._not_before = start + 2 * (self._clock() - start)
        self._must_publish = False
        return True
