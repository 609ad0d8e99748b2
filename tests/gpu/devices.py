"""Tensors on whatever the tests run on: a GPU, or the stand-in for one."""

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda


def to_device(tensor: torch.Tensor, device: int = 0) -> torch.Tensor:
    """A contiguous copy on a device."""
    name = str(tensor.dtype).removeprefix("torch.")
    return cuda.empty(tensor.shape, name, device).copy_(tensor)


def set_standin(settings: Mapping[str, str]) -> None:
    """Set what the stand-in reads from the environment; a process that has used it already is not affected."""
    os.environ.update(settings)


class SideStream:
    """A stream of its own; in `with stream():` work goes there: on a GPU torch's, on the stand-in what softs_fast takes for torch's."""

    def __init__(self, device: int) -> None:
        self._standin = _kernels.CudaStream(device) if cuda.is_standin else None
        self._torch = None if cuda.is_standin else torch.cuda.Stream(device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._standin is not None:
            with mock.patch.object(cuda, "current_stream", return_value=self._standin.handle):
                yield
        else:
            with torch.cuda.stream(self._torch):
                yield


class Hold:
    """Everything that a stream gets after this was made waits until `release`, or for ever if the process ends before."""

    def __init__(self, stream: int, device: int) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        address = torch.frombuffer(self._page, dtype=torch.uint8).data_ptr()
        at = _kernels.cuda_map_host(address, mmap.PAGESIZE, device)
        _kernels.cuda_wait_for_word(at, 1, device, stream)

    def release(self) -> None:
        """Let the stream go on."""
        self._page[0] = 1


def synchronize(device: int) -> None:
    """Wait for all work of this process on a device."""
    if cuda.is_standin:
        # The stand-in frees memory when all streams are done, as CUDA does.
        _kernels.CudaMemory(1, device).close()
    else:
        torch.cuda.synchronize(device)
