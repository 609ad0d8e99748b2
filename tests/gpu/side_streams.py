"""Streams that tests choose and hold up: on a GPU those of torch, on the stand-in those that softs_fast takes for torch's."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from softs_fast import _kernels
from softs_fast.tensors import cuda


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
