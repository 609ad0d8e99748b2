"""Rows of a call's tensors in host memory, copied there without waiting for each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..codecs import TopKLogits
from .forward import Made

__all__ = ["HostBatch"]


class HostBatch:
    """Host memory for the samples of one call: one buffer for each tensor, filled in parts.

    From a GPU the buffers are pinned, so a copy runs beside the next part's computation, and the host waits once, in
    `finish`. Pinned memory is kept by torch and used again by later calls.

    Args:
        n_rows: Number of samples of the call.
        device: Device on which the tensors are made.
    """

    def __init__(self, n_rows: int, device: torch.device) -> None:
        self._n_rows = n_rows
        self._device = device
        self._is_pinned = device.type == "cuda"
        self._buffers: dict[str, tuple[Tensor, ...]] = {}
        self._kinds: dict[str, type[Any]] = {}

    def put(self, first: int, made: dict[str, Made]) -> None:
        """Copy rows of each tensor, from row `first` on; from a GPU without waiting for the copy."""
        for name, value in made.items():
            parts = tuple(value) if isinstance(value, TopKLogits) else (value,)
            if name not in self._buffers:
                self._kinds[name] = type(value)
                self._buffers[name] = tuple(self._buffer_for(part) for part in parts)
            for buffer, part in zip(self._buffers[name], parts, strict=True):
                buffer[first : first + len(part)].copy_(part, non_blocking=self._is_pinned)

    def finish(self) -> dict[str, Made]:
        """Wait for the copies; return {name: rows of all parts} in host memory."""
        if self._is_pinned:
            torch.cuda.current_stream(self._device).synchronize()
        return {
            name: TopKLogits(*parts) if self._kinds[name] is TopKLogits else parts[0]
            for name, parts in self._buffers.items()
        }

    def _buffer_for(self, part: Tensor) -> Tensor:
        shape = (self._n_rows, *part.shape[1:])
        return torch.empty(shape, dtype=part.dtype, device="cpu", pin_memory=self._is_pinned)
