"""Whether tensors are finite, in one pass over their memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["are_finite"]


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all floats are finite.

    Args:
        tensors: Tensors of any dtype, on any device.

    Example:
        >>> are_finite([torch.ones(3), torch.tensor([1.0, float("nan")])])
        False
    """
    with torch.no_grad():
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.numel():
                # NaN is the least and the largest of all. `isfinite` writes three tensors of the same size.
                least, largest = torch.aminmax(tensor.detach())
                if not (math.isfinite(least.item()) and math.isfinite(largest.item())):
                    return False
    return True
