"""The sum of tensors in one order, and which tensors can be summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....errors import ConfigError

__all__ = ["check_summable", "sum_in_order"]

#: Dtypes of which sums are made in float32, and rounded once.
_NARROW = (torch.float16, torch.bfloat16)
_SUMMABLE = (
    *_NARROW,
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def sum_in_order(parts: Sequence[Tensor], divisor: int = 1, *, overwrite: bool = False) -> Tensor:
    """Return the sum of tensors in their order, divided by a number: ((first + second) + third ...) / divisor.

    Each element is by itself, so slices of a tensor have the sums that they have in the whole.

    Args:
        parts: Tensors of one shape and dtype, at least one. float16 and bfloat16 are summed and divided in float32,
            and rounded once; integers wrap around.
        divisor: Divisor of the sum; 1 for integers.
        overwrite: Whether the first part may be overwritten, and returned.

    Returns:
        A tensor of the dtype of the parts, else a new one.
    """
    dtype = parts[0].dtype
    total = parts[0].to(torch.float32 if dtype in _NARROW else dtype, copy=not overwrite)
    for one in parts[1:]:
        total += one
    if divisor != 1:
        total /= divisor
    return total.to(dtype)


def check_summable(what: str, tensors: Sequence[Tensor], *, is_divided: bool) -> None:
    """Check that tensors can be summed over ranks.

    Args:
        what: Name of the call.
        tensors: Tensors that the call was given.
        is_divided: Whether the sum is divided.

    Raises:
        ConfigError: one is not dense, not in the memory of the host, or of a dtype that has no sums or no means.
    """
    for one in tensors:
        if type(one) is not Tensor and not isinstance(one, torch.nn.Parameter):
            raise ConfigError(f"{what}: got a {type(one).__name__}; need plain tensors")
        if one.layout is not torch.strided or one.device.type != "cpu":
            raise ConfigError(f"{what}: a tensor is {one.layout} on {one.device}; need dense ones on the CPU")
        if one.dtype not in _SUMMABLE:
            raise ConfigError(f"{what}: a tensor is {one.dtype}, which has no sum over ranks")
        if is_divided and not (one.is_floating_point() or one.is_complex()):
            raise ConfigError(f"{what}: a tensor is {one.dtype}, which has no means; use op='sum'")
