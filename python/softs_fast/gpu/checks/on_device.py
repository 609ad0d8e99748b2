"""Tensors and streams on whatever the checks run on: a GPU, or the stand-in for one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda

__all__ = ["SideStream", "hold", "set_standin", "synchronize", "to_device"]

#: Clock of a device, about.
_CYCLES_PER_S = 1.7e9


def to_device(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """Return a contiguous copy on a device."""
    name = str(tensor.dtype).removeprefix("torch.")
    return cuda.empty(tensor.shape, name, device).copy_(tensor)


def synchronize(device: int = 0) -> None:
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
