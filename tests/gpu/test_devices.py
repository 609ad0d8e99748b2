"""Memory, events and streams that processes share."""

import gc
import weakref

import pytest
import torch

from softs_fast import _kernels
from softs_fast.gpu.checks import memory as memory_of_processes
from softs_fast.tensors import cuda


class _Keep:
    """Something that a weak reference can look at."""


def over(memory: object, address: int, n: int, dtype: str = "int64") -> torch.Tensor:
    return cuda.tensor_over(address, dtype, [n], [1], 0, memory)


def test_memory_and_events_of_another_process() -> None:
    memory_of_processes.check()


def test_own_memory_and_nonsense_cannot_be_opened() -> None:
    memory = _kernels.CudaMemory(64, 0)
    with pytest.raises(_kernels.CudaError, match="cudaIpcOpenMemHandle"):
        _kernels.CudaMapping(memory.handle, 0)
    with pytest.raises(_kernels.CudaError, match="cudaIpcOpenMemHandle"):
        _kernels.CudaMapping(bytes(64), 0)
    with pytest.raises(ValueError, match="64 bytes"):
        _kernels.CudaMapping(b"", 0)
    with pytest.raises(_kernels.CudaError, match="cudaIpcOpenEventHandle"):
        _kernels.CudaEvent.open(bytes(64), 0)
    with pytest.raises(_kernels.CudaError, match="cudaSetDevice"):
        _kernels.CudaMemory(64, 99)


def test_event_that_was_never_recorded_is_done() -> None:
    event = _kernels.CudaEvent(0)
    assert event.is_done()
    event.wait(0)
    event.synchronize()
    event.close()
    event.close()
    with pytest.raises(_kernels.CudaError, match="closed"):
        event.is_done()


def test_addresses_and_devices() -> None:
    memory = _kernels.CudaMemory(64, 0)
    host = torch.zeros(8)
    assert _kernels.cuda_device_of(memory.address + 63) == 0
    assert _kernels.cuda_device_of(host.data_ptr()) is None
    assert cuda.device_of(host) is None
    assert cuda.device_of(over(memory, memory.address, 8)) == 0
    assert len(_kernels.cuda_device_id(0)) == 32
    assert _kernels.cuda_device_name(0)
    assert _kernels.cuda_can_access(0, 0)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "int16", "uint8", "bool"]
)
def test_tensor_over_memory_keeps_it(dtype: str) -> None:
    memory = _kernels.CudaMemory(4096, 0)
    keep = _Keep()
    gone = weakref.ref(keep)
    tensor = cuda.tensor_over(memory.address + 16, dtype, [2, 3], [8, 2], 0, keep)
    del keep
    assert tensor.dtype == getattr(torch, dtype)
    assert (tensor.shape, tensor.stride()) == ((2, 3), (8, 2))
    assert tensor.data_ptr() == memory.address + 16
    view = tensor[1:]
    del tensor
    gc.collect()
    assert gone() is not None
    del view
    assert gone() is None


def test_a_capsule_that_is_never_taken_releases_its_memory() -> None:
    keep = _Keep()
    gone = weakref.ref(keep)
    memory = _kernels.CudaMemory(64, 0)
    capsule = _kernels.cuda_tensor(memory.address, [1], [1], "uint8", 0, keep)
    del keep
    assert gone() is not None
    del capsule
    assert gone() is None


def test_memory_of_the_host_is_registered_once() -> None:
    host = torch.zeros(1 << 16, dtype=torch.uint8)
    _kernels.cuda_register(host.data_ptr(), host.nbytes)
    with pytest.raises(_kernels.CudaError, match="AlreadyRegistered"):
        _kernels.cuda_register(host.data_ptr(), host.nbytes)
    _kernels.cuda_unregister(host.data_ptr())
