"""Means of what is left when the extreme values of each element are left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["trimmed_greatest", "trimmed_mean_of"]

#: Elements of all pushes together that are sorted at once.
_CHUNK = 1 << 18


def trimmed_mean_of(parts: Sequence[tuple[float, Tensor]], trim: int) -> Tensor:
    """Return, for each element, the mean of the values of all vectors without the extreme ones.

    Values are sorted and summed in float64 and cast once to float32, so the order of the vectors changes no bit. Beside
    the vectors this takes some 8 MiB.

    Args:
        parts: factors, and vectors float32 or bfloat16 [n].
        trim: values that are left out on each side; fewer than half of the vectors.

    Source: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, definition 2.
    """
    m, n = len(parts), parts[0][1].numel()
    mean = torch.empty(n)
    size = max(1, _CHUNK // m)
    for begin in range(0, n, size):
        end = min(n, begin + size)
        values = torch.stack([vector[begin:end].double() * factor for factor, vector in parts])
        kept = values.sort(0).values[trim : m - trim]
        mean[begin:end] = kept.sum(0) / (m - 2 * trim)
    return mean


def trimmed_greatest(vectors: Sequence[Tensor], trim: int) -> Tensor:
    """Return, for each element, the greatest value that is not left out.

    Args:
        vectors: int64 [n].
        trim: values that are left out on each side; fewer than half of the vectors.
    """
    return torch.stack(list(vectors)).sort(0).values[len(vectors) - 1 - trim]
