"""Several tensors as one run of bytes, in their order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["Flat"]

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Flat:
    """The memory of tensors, read and written by position.

    Args:
        tensors: contiguous, in host memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._parts: list[_Bytes] = [
            tensor.detach().view(-1).view(torch.uint8).numpy() for tensor in tensors if tensor.numel()
        ]
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + part.size)

    def read(self, at: int, n_bytes: int) -> _Bytes:
        """Return bytes; a view, if they are of one tensor."""
        views = [part[begin:end] for part, begin, end in self._covered(at, n_bytes)]
        return views[0] if len(views) == 1 else np.concatenate(views)

    def write(self, at: int, data: bytes | bytearray) -> None:
        """Replace bytes."""
        new = np.frombuffer(data, np.uint8)
        done = 0
        for part, begin, end in self._covered(at, new.size):
            part[begin:end] = new[done : done + end - begin]
            done += end - begin

    def _covered(self, at: int, n_bytes: int) -> Iterator[tuple[_Bytes, int, int]]:
        """Yield the parts of a range, each with where it begins and ends in them."""
        until = at + n_bytes
        index = bisect_right(self._starts, at) - 1
        while at < until:
            start, stop = self._starts[index], min(until, self._starts[index + 1])
            yield self._parts[index], at - start, stop - start
            at, index = stop, index + 1
