"""The mean of the weights of all ranks, every so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from softs_fast.averaging.reduction import (
    BufferRule,
    average_in_place,
    buffers_of,
    check_every,
    weights_of,
)
from softs_fast.collectives import Strategy
from softs_fast.errors import ConfigError


class AverageAll:
    """Averages the weights of all ranks, in place, every `every` steps.

    The weights that `momentum` leaves are the rank's own: `w = momentum * w + (1 - momentum) * mean`. With momentum 0
    all ranks have the same bits afterwards. With `every=10, momentum=0.99` this is PAPA; with gradients that are reduced
    at first and no longer later, it is post-local SGD. Optimizers keep their state.

    A rank that dies costs one repeated reduction among those that are left, if the strategy can `rebuild`.

    Args:
        model: its parameters are averaged; tied ones once.
        strategy: the group, after `init`.
        every: steps from one mean to the next; the same on all ranks.
        momentum: share of the own weights that stays, from 0 to below 1.
        buffers: `average` takes the mean of float buffers and the largest of integers; `own` keeps them.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> import tempfile, torch
        >>> from softs_fast.averaging import AverageAll
        >>> from softs_fast.collectives import ShmStrategy
        >>> model = torch.nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder, ShmStrategy().init(0, 1, folder) as strategy:
        ...     average = AverageAll(model, strategy, every=2)
        ...     [average.step() for _ in range(4)]
        [False, True, False, True]

    Source: post-local SGD, Lin et al. 2020 (arXiv 1808.07217), section 3; momentum as in PAPA, Jolicoeur-Martineau et
    al. 2024 (arXiv 2304.03094), section 3.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        strategy: Strategy,
        *,
        every: int = 100,
        momentum: float = 0.0,
        buffers: BufferRule = "average",
    ) -> None:
        check_every(every)
        if not 0 <= momentum < 1:
            raise ConfigError(f"momentum is {momentum}; the share of the own weights is from 0 to below 1")
        self._weights = weights_of(model)
        self._buffers = buffers_of(model, buffers)
        self._strategy = strategy
        self._every = every
        self._momentum = momentum
        self._n_steps = 0
        self._n_averaged = 0

    def step(self) -> bool:
        """Count a step; average if it is time. Call it after `optimizer.step()`, equally often on all ranks.

        Returns:
            Whether the weights were averaged.

        Raises:
            PeerLost: a rank was lost, and the strategy cannot rebuild its group; the weights are as they were.
            ConfigError: the models of the ranks differ; the text names the tensors.
        """
        self._n_steps += 1
        if self._n_steps % self._every:
            return False
        self.average()
        return True

    def average(self) -> None:
        """Average now; a call of all ranks.

        Raises:
            PeerLost: as `step`.
            ConfigError: as `step`.
        """
        average_in_place(self._strategy, self._weights, momentum=self._momentum)
        average_in_place(self._strategy, self._buffers, momentum=0.0)
        self._n_averaged += 1

    @property
    def counters(self) -> dict[str, int]:
        """Steps and means so far, and the ranks that there are."""
        return {"steps": self._n_steps, "averaged": self._n_averaged, "ranks": self._strategy.size}

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {"n_steps": self._n_steps, "n_averaged": self._n_averaged}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called."""
        self._n_steps = int(state["n_steps"])
        self._n_averaged = int(state["n_averaged"])
