"""Tensors on whatever the tests run on: a GPU, or the stand-in for one."""

import torch

from softs_fast import cuda


def to_device(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """A contiguous copy on a device."""
    name = str(tensor.dtype).removeprefix("torch.")
    return cuda.empty(tensor.shape, name, device).copy_(tensor)
