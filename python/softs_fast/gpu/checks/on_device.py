"""Tensors and streams on whatever the checks run on: a GPU, or the stand-in for one."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda

__all__ = ["hold", "set_standin", "synchronize", "to_device"]

#: Clock of a device, about.
_CYCLES_PER_S = 1.7e9


def to_device(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """Return a contiguous copy on a device."""
    name = str(tensor.dtype).removeprefix("torch.")
    return cuda.empty(tensor.shape, name, device).copy_(tensor)


def synchronize(device: int = 0) -> None:
    """Wait for all work of this process on a device."""
    if cuda.is_standin:
        # The stand-in frees memory when all streams are done, as CUDA does.
        _kernels.CudaMemory(1, device).close()
    else:
        torch.cuda.synchronize(device)


def hold(stream: int, seconds: float, device: int = 0) -> None:
    """Keep a stream busy for about so long. On the stand-in: set SOFTS_STANDIN_DELAY_US before CUDA is used."""
    if not cuda.is_standin:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):  # type: ignore[no-untyped-call]
            torch.cuda._sleep(int(seconds * _CYCLES_PER_S))  # type: ignore[no-untyped-call]


def set_standin(settings: Mapping[str, str]) -> None:
    """Set what the stand-in reads from the environment; a process that has used it already is not affected."""
    os.environ.update(settings)
