"""The mean of the weights of all ranks, every so many steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from softs_fast.averaging.matching import BufferRule, Found, agree, warn_of
from softs_fast.averaging.reduction import average_in_place, check_every
from softs_fast.collectives import Strategy
from softs_fast.errors import ConfigError


class AverageAll:
    """Averages the weights of all ranks, in place, every `every` steps.

    The weights that `momentum` leaves are the rank's own: `w = momentum * w + (1 - momentum) * mean`. With momentum 0
    all ranks have the same bits afterwards. With `every=10, momentum=0.99` this is PAPA; with gradients that are reduced
    at first and no longer later, it is post-local SGD. Optimizers keep their state.

    The tensors of the model are looked up at each mean, so they may be replaced, and layers may be added or unfrozen
    meanwhile, as long as all ranks have the same ones at a mean. Frozen parameters are left alone, and buffers that a
    checkpoint does not have. Of a distributed model, such as that of FSDP2, the shards of this process are averaged: then
    the ranks of the strategy are those that have the same shards.

    A rank that dies costs one repeated reduction among those that are left, if the strategy can `rebuild`.

    Args:
        model: its trainable parameters are averaged, tied ones once; one that was frozen since the last mean once more.
        strategy: the group, after `init`.
        every: steps from one mean to the next; the same on all ranks.
        momentum: share of the own weights that stays, from 0 to below 1.
        buffers: `average` takes the mean of float buffers and the largest of integers, and the first rank's buffers of a
            reparametrisation, such as the vectors of `spectral_norm`; those that differ in shape between ranks are left
            alone, with a warning. `own` keeps all.

    Raises:
        ConfigError: an argument is out of range, or a trainable parameter has no memory or no dtype that can be
            averaged.

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
        found = Found.of(model, buffers)
        found.check()
        self._model = model
        self._buffers = buffers
        self._trained = found.trained
        self._warned: set[str] = set()
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
            ConfigError: the models of the ranks differ, or a parameter cannot be averaged; the text names it.
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
        found = Found.of(self._model, self._buffers, self._trained)
        agreed = agree(self._strategy, found)
        warn_of(agreed.left_out, self._warned)
        average_in_place(
            self._strategy,
            found.pick(agreed.weights),
            momentum=self._momentum,
            buffers=found.pick(agreed.buffers),
            copied=found.pick(agreed.copied),
        )
        found.mark_written((*agreed.weights, *agreed.buffers, *agreed.copied))
        self._trained = found.still_trained(agreed.weights)
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
