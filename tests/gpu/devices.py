"""Tensors on whatever the tests run on: a GPU, or the stand-in for one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import torch

from softs_fast import _kernels, cuda


def to_device(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """A contiguous copy on a device."""
    name = str(tensor.dtype).removeprefix("torch.")
    return cuda.empty(tensor.shape, name, device).copy_(tensor)


def set_standin(settings: Mapping[str, str]) -> None:
    """Set what the stand-in reads from the environment; a process that has used it already does not hear of it."""
    os.environ.update(settings)


@contextmanager
def own_stream(device: int) -> Iterator[None]:
    """Work in a stream of its own; on a GPU that is torch's current one, on the stand-in the one that softs_fast takes for it."""
    if cuda.is_standin:
        stream = _kernels.CudaStream(device)
        with mock.patch.object(cuda, "current_stream", return_value=stream.handle):
            yield
        stream.close()
    else:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            yield
