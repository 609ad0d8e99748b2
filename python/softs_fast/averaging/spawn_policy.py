"""The policies of torchgfn's page `spawn_policy`, by their names and arguments, for any `torch.nn.Module`.

docs/compat.md lists what differs on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from softs_fast.averaging.decide import n_worst
from softs_fast.averaging.matching import Found, agree
from softs_fast.averaging.mpi import average_by_mpi, load_mpi
from softs_fast.averaging.reduction import average_in_place
from softs_fast.averaging.selective_policies import (
    AsyncSelectiveAveragingPolicy,
    AsyncSelectiveAveragingPolicympi4pyFast,
    AsyncSelectiveAveragingPolicympi4pyGeneral,
    Result,
    SpawnPolicy,
    is_distributed,
)
from softs_fast.collectives import TorchStrategy

__all__ = [
    "AsyncSelectiveAveragingPolicy",
    "AsyncSelectiveAveragingPolicympi4pyFast",
    "AsyncSelectiveAveragingPolicympi4pyGeneral",
    "AverageAllPolicy",
    "AverageAllPolicympi4py",
    "SpawnPolicy",
]


class AverageAllPolicy(SpawnPolicy):
    """Averages the parameters of all ranks of a group of torch.distributed; buffers and optimizers keep theirs.

    Example:
        >>> import torch
        >>> from softs_fast.averaging.spawn_policy import AverageAllPolicy
        >>> model = torch.nn.Linear(2, 1)
        >>> policy = AverageAllPolicy(average_every=10)
        >>> _, _, info = policy(0, model, torch.optim.SGD(model.parameters()))
        >>> info  # torch.distributed is not initialized
        {}
    """

    def __call__(
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        group: Any = None,
    ) -> Result:
        """Average in iterations that `average_every` divides; a call of all ranks of the group then.

        Args:
            iteration: Number of the iteration, from 0.
            model: Model to average, in place.
            optimizer: Optimizer, returned as it is.
            local_metric: Not used.
            group: Group of the ranks; None for all.

        Raises:
            PeerLost: A rank was lost; the weights are as they were.
            ConfigError: The models of the ranks differ.
        """
        if not is_distributed():
            return model, optimizer, {}
        if iteration % self.average_every or dist.get_rank(group) < 0:
            return model, optimizer, {"averaged_this_iteration": False}
        world: Any = dist.group.WORLD
        strategy = TorchStrategy(world if group is None else group)
        found = Found.of(model, "own")
        average_in_place(strategy, found.pick(agree(strategy, found).weights))
        return model, optimizer, {"averaged_this_iteration": True}


class AverageAllPolicympi4py(SpawnPolicy):
    """Averages the parameters of all ranks of a communicator of mpi4py."""

    def __call__(
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        group: Any = None,
    ) -> Result:
        """Average in iterations that `average_every` divides; a call of all ranks of the communicator then.

        Raises:
            ImportError: There is no MPI; the text says what to install.
        """
        if iteration % self.average_every:
            return model, optimizer, {"averaged_this_iteration": False}
        average_by_mpi(load_mpi().COMM_WORLD if group is None else group, model)
        return model, optimizer, {"averaged_this_iteration": True}


def _compute_worst_ranks_by_ratio(metrics: Sequence[float], replacement_ratio: float) -> set[int]:
    """Return the ranks with the lowest metrics: `n * ratio` of them, at least one and never all; none if it is 0.

    NaN is the lowest; of equal metrics the lower rank counts as the worse one.
    """
    scores = [-math.inf if math.isnan(metric) else metric for metric in metrics]
    ranks = sorted(range(len(scores)), key=lambda rank: (scores[rank], rank))
    return set(ranks[: max(0, n_worst(len(ranks), replacement_ratio))])
