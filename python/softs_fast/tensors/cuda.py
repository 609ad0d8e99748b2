"""Tensors on CUDA devices, and their streams, by address.

In a build against the stand-in for CUDA, device memory is host memory: torch sees CPU tensors and works on them
synchronously, as if in stream 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import _kernels
from .dtypes import ITEM_BYTES, STAND_INS, import_torch, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "current_device",
    "current_stream",
    "device_id",
    "device_of",
    "empty",
    "is_standin",
    "n_devices",
    "read_by_kernel",
    "tensor_over",
]

#: Whether this build uses the stand-in for CUDA, in tests.
is_standin: bool = (_kernels.cuda_build() or (None, ""))[1] == "stand-in"


def n_devices() -> int:
    """Return the number of usable CUDA devices; 0 without a driver, or without CUDA in the build or in torch."""
    if _kernels.cuda_build() is None or not (is_standin or import_torch().cuda.is_available()):
        return 0
    return max(0, _kernels.cuda_devices())


def current_device() -> int:
    """Return the number of torch's current device. There must be one."""
    return 0 if is_standin else import_torch().cuda.current_device()


def current_stream(device: int) -> int:
    """Return the handle of torch's current stream on a device; 0 is the default stream."""
    return 0 if is_standin else int(import_torch().cuda.current_stream(device).cuda_stream)


@functools.cache
def device_id(device: int) -> str:
    """Return the UUID of a device, 32 hexadecimal digits. CUDA is asked once: its answer takes long.

    Raises:
        CudaError: there is no such device.
    """
    return _kernels.cuda_device_id(device)


def device_of(tensor: Tensor) -> int | None:
    """Return the number of a tensor's device; None if it is in host memory."""
    if not is_standin:
        return int(tensor.get_device()) if tensor.is_cuda else None
    return _kernels.cuda_device_of(tensor.data_ptr()) if n_devices() and tensor.numel() else None


def tensor_over(
    address: int,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int],
    device: int,
    keep: object,
) -> Tensor:
    """Return a tensor on existing device memory.

    Args:
        address: Address of the first item, aligned to the item size.
        dtype: Name of the dtype.
        shape: Shape of the tensor.
        strides: Strides in items, one per dimension.
        device: Number of the device that owns the memory.
        keep: Object that owns the memory; it is referenced until the last tensor on the memory is gone.
    """
    torch = import_torch()
    bits = STAND_INS.get(dtype, dtype) if ITEM_BYTES[dtype] == 1 else dtype
    capsule = _kernels.cuda_tensor(address, list(shape), list(strides), bits, device, keep)
    tensor: Tensor = torch.from_dlpack(capsule)
    if bits != dtype:
        tensor = tensor.view(torch_dtype(dtype))
    return tensor


def empty(shape: Sequence[int], dtype: str, device: int) -> Tensor:
    """Return a new contiguous, uninitialised tensor on a device."""
    if not is_standin:
        tensor: Tensor = import_torch().empty(tuple(shape), dtype=torch_dtype(dtype), device=f"cuda:{device}")
        return tensor
    memory = _kernels.CudaMemory(max(1, math.prod(shape) * ITEM_BYTES[dtype]), device)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tensor_over(memory.address, dtype, shape, strides, device, memory)


def read_by_kernel(address: int, n_bytes: int, device: int) -> bytes:
    """Return what a kernel on `device` reads at an address, which may belong to another device.

    Some machines report peer access and then read other data; copies may go through the host and do not show that.

    Raises:
        CudaError: the device has failed.
    """
    import numpy as np

    stream = _kernels.CudaStream(device)
    read = _kernels.CudaMemory(n_bytes, device)
    try:
        _kernels.cuda_pack(
            [(address, n_bytes, "uint8", 0, "uint8")],
            slot=read.address,
            slot_bytes=n_bytes,
            stream=stream.handle,
        )
        data = np.empty(n_bytes, "uint8")
        _kernels.cuda_copy(data.ctypes.data, read.address, n_bytes, stream.handle)
        stream.synchronize()
    finally:
        stream.close()
        read.close()
    return data.tobytes()
