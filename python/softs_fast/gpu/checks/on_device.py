"""Tensors and streams on whatever the checks run on: a GPU, or the stand-in for one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda

__all__ = ["Buffer", "SideStream", "hold", "set_standin", "synchronize", "to_device", "to_device_together"]

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


def synchronize(device: int) -> None:
    """Wait for all streams of a device; what torch does on the stand-in is done when it returns."""
    if not cuda.is_standin:
        torch.cuda.synchronize(device)


def hold(stream: int, seconds: float, device: int = 0) -> None:
    """Keep a stream busy for about so long. On the stand-in: set SOFTS_STANDIN_DELAY_US before CUDA is used."""
    if not cuda.is_standin:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):  # type: ignore[no-untyped-call]
            torch.cuda._sleep(int(seconds * _CYCLES_PER_S))  # type: ignore[no-untyped-call]


def set_standin(settings: Mapping[str, str]) -> None:
    """Set what the stand-in reads from the environment; a process that has used it already is not affected."""
    os.environ.update(settings)


class SideStream:
    """A stream of its own; in `with stream():` work goes there: on a GPU torch's, on the stand-in what softs_fast takes for torch's."""

    def __init__(self, device: int) -> None:
        self._standin = _kernels.CudaStream(device) if cuda.is_standin else None
        self._torch = None if cuda.is_standin else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._standin is not None:
            with mock.patch.object(cuda, "current_stream", return_value=self._standin.handle):
                yield
        else:
            with torch.cuda.stream(self._torch):
                yield
