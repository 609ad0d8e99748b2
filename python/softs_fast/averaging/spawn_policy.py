"""The policies of torchgfn's page `spawn_policy`, by their names and arguments, for any `torch.nn.Module`.

One engine, `SelectiveAveraging`, is behind all selective ones; docs/compat.md lists what differs on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from softs_fast.averaging.decide import n_worst
from softs_fast.averaging.mpi_policies import (
    AsyncSelectiveAveragingPolicympi4pyFast,
    AsyncSelectiveAveragingPolicympi4pyGeneral,
    AverageAllPolicympi4py,
)
from softs_fast.averaging.torch_policies import AsyncSelectiveAveragingPolicy, AverageAllPolicy, SpawnPolicy

__all__ = [
    "AsyncSelectiveAveragingPolicy",
    "AsyncSelectiveAveragingPolicympi4pyFast",
    "AsyncSelectiveAveragingPolicympi4pyGeneral",
    "AverageAllPolicy",
    "AverageAllPolicympi4py",
    "SpawnPolicy",
]


def _compute_worst_ranks_by_ratio(metrics: Sequence[float], replacement_ratio: float) -> set[int]:
    """Return the ranks with the lowest metrics: `n * ratio` of them, at least one and never all; none if it is 0.

    NaN is the lowest; of equal metrics the lower rank counts as the worse one.
    """
    scores = [-math.inf if math.isnan(metric) else metric for metric in metrics]
    ranks = sorted(range(len(scores)), key=lambda rank: (scores[rank], rank))
    return set(ranks[: max(0, n_worst(len(ranks), replacement_ratio))])
