"""How large a push may be beside the others: one of a worker that has diverged must not undo the work of all."""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low

import torch
from torch import Tensor

__all__ = ["NormGuard", "norm_of"]

#: Pushes that are remembered, and of which at least so many are needed for a median that says something.
_RECENT, _LEAST = 64, 8


class NormGuard:
    """Scales pushes down to a multiple of the median norm of recent ones.

    What is remembered of a push is its norm after that, so pushes that grow cannot raise the median by themselves.

    Args:
        times: Multiple of the median; 0 for any norm.

    Source: own; the median as threshold of a norm is that of AutoClip, Seetharaman et al., MLSP 2020.
    """

    def __init__(self, times: float) -> None:
        self._times = times
        self._norms: deque[float] = deque(maxlen=_RECENT)

    @property
    def limit(self) -> float:
        """Greatest norm of the next push."""
        if not self._times or len(self._norms) < _LEAST:
            return math.inf
        return self._times * median_low(self._norms)

    def factor(self, norm: float) -> float:
        """Return the factor for a push of this norm, 1 or less, and remember the push."""
        limit = self.limit
        if norm > 0:
            # A push of zeros says nothing of others.
            self._norms.append(min(norm, limit))
        return 1.0 if norm <= limit else limit / norm


def norm_of(flat: Tensor) -> float:
    """Return the norm of a finite vector, to the precision of its dtype.

    Args:
        flat: float32 or bfloat16 [n], on the CPU.
    """
    # Ten times as fast as a norm in float64, which is for numbers of which the squares are none of the dtype.
    square = float(flat @ flat)
    if math.isfinite(square) and square > 0:
        return math.sqrt(square)
    return float(torch.linalg.vector_norm(flat, dtype=torch.float64))
