"""Tensors and streams on whatever the checks run on: a GPU, or the stand-in for one."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda

__all__ = ["Buffer", "hold", "set_standin", "synchronize", "to_device", "to_device_together"]

#: Clock of a device, about.
_CYCLES_PER_S = 1.7e9
#: Bytes, as of CUDA allocations.
_ALIGNMENT = 256


def to_device(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """Return a contiguous copy on a device."""
    name = str(tensor.dtype).removeprefix("torch.")
    return cuda.empty(tensor.shape, name, device).copy_(tensor)


class Buffer:
    """One allocation on a device for tensors one after the other; small allocations are not cheap.

    Args:
        n_bytes: its size.
        device: number of the device.
    """

    def __init__(self, n_bytes: int, device: int = 0) -> None:
        self._bytes = cuda.empty((n_bytes,), "uint8", device)

    def place(self, tensor: torch.Tensor, at: int = 0) -> torch.Tensor:
        """Return a contiguous copy of a tensor that begins at a byte, a multiple of its item size."""
        part = self._bytes[at : at + tensor.nbytes]
        return part.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def to_device_together(tensors: Mapping[str, torch.Tensor], device: int = 0) -> dict[str, torch.Tensor]:
    """Return contiguous copies on a device, all in one allocation."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        places[name] = end
        end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = Buffer(end, device)
    return {name: buffer.place(tensor, places[name]) for name, tensor in tensors.items()}


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
