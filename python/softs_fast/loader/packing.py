"""Batches on their way from a DataLoader's worker to its trainer: small tensors travel as bytes.

torch gives every tensor a piece of shared memory, and the trainer asks the worker for its descriptor, over a new connection: half a
millisecond for each, whatever it holds.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

__all__ = ["INLINE_BYTES", "Packed"]

#: Larger tensors travel as torch has it: their copy into a pipe and out of it would take longer.
INLINE_BYTES = 64 << 10


class Packed:
    """An object that has been pickled for a queue already, and comes out of the queue as itself.

    That happens in the worker's own thread. The thread of a queue can abort a worker that ends meanwhile: to let go of a tensor's
    memory it needs the interpreter.

    Args:
        content: anything that torch's queues take.
    """

    def __init__(self, content: Any) -> None:
        packed = io.BytesIO()
        _Packer(packed, pickle.HIGHEST_PROTOCOL).dump(content)
        self._bytes = packed.getvalue()

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._bytes,)


class _Packer(ForkingPickler):
    def reducer_override(self, content: Any) -> Any:
        if type(content) is not torch.Tensor or not _is_plain(content):
            return NotImplemented
        return _tensor_of, (_bytes_of(content), str(content.dtype)[len("torch.") :], tuple(content.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is small, and no more than its elements."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        and tensor.numel() * tensor.element_size() <= INLINE_BYTES
    )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    rows = tensor.contiguous()
    return ctypes.string_at(rows.data_ptr(), rows.nbytes)


def _tensor_of(data: bytes, dtype_name: str, shape: tuple[int, ...]) -> torch.Tensor:
    dtype = getattr(torch, dtype_name)
    if not data:
        return torch.empty(shape, dtype=dtype)
    # A tensor that can be written to needs memory that can.
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
