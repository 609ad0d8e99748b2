"""Memory, events and streams that processes share."""

import gc
import multiprocessing
import os
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection

import pytest
import torch
from devices import to_device

from softs_fast import _kernels
from softs_fast.tensors import cuda

WATCHDOG_S = 40.0
N = 1000

_context = multiprocessing.get_context("spawn")


class _Keep:
    """Something that a weak reference can look at."""


def over(memory: object, address: int, n: int, dtype: str = "int64") -> torch.Tensor:
    return cuda.tensor_over(address, dtype, [n], [1], 0, memory)


def peer(pipe: Connection, memory_handle: bytes, filled: bytes, drained: bytes) -> None:
    """Copy 1, 2, ... to the memory of another process, each once the one before was taken."""
    memory = _kernels.CudaMapping(memory_handle, 0)
    events = _kernels.CudaEvent.open(filled, 0), _kernels.CudaEvent.open(drained, 0)
    stream = _kernels.CudaStream(0)
    for i in range(1, pipe.recv() + 1):
        source = to_device(torch.full((N,), i))
        torch.cuda.synchronize() if not cuda.is_standin else None
        events[1].wait(stream.handle)
        _kernels.cuda_copy(memory.address, source.data_ptr(), source.nbytes, stream.handle)
        events[0].record(stream.handle)
        pipe.send(i)
        assert pipe.recv() == i
        stream.synchronize()
    stream.close()
    memory.close()


def test_memory_and_events_of_another_process() -> None:
    """What is copied after the event `filled` is always what the peer wrote, and never overwritten before `drained`."""
    memory = _kernels.CudaMemory(8 * N, 0)
    slot = over(memory, memory.address, N)
    assert not slot.any()
    filled, drained = _kernels.CudaEvent(0), _kernels.CudaEvent(0)
    here, there = _context.Pipe()
    process = _context.Process(
        target=peer, args=(there, memory.handle, filled.handle, drained.handle), daemon=True
    )
    process.start()
    try:
        here.send(20)
        stream = _kernels.CudaStream(0)
        taken = to_device(torch.zeros(N, dtype=torch.int64))
        for i in range(1, 21):
            assert here.poll(WATCHDOG_S)
            assert here.recv() == i
            filled.wait(stream.handle)
            _kernels.cuda_copy(taken.data_ptr(), memory.address, memory.n_bytes, stream.handle)
            drained.record(stream.handle)
            here.send(i)
            drained.synchronize()
            assert drained.is_done()
            assert (taken == i).all()
        process.join(WATCHDOG_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


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
    with pytest.raises(_kernels.CudaError, match="InvalidDevice"):
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
    _kernels.cuda_register(host.data_ptr(), host.nbytes, 0)
    with pytest.raises(_kernels.CudaError, match="AlreadyRegistered"):
        _kernels.cuda_register(host.data_ptr(), host.nbytes, 0)
    _kernels.cuda_unregister(host.data_ptr(), 0)


CONTEXTS = """
import re
import threading
from pathlib import Path

import numpy as np
from softs_fast import _kernels


def use_device_1() -> None:
    event, stream, memory = _kernels.CudaEvent(1), _kernels.CudaStream(1), _kernels.CudaMemory(4096, 1)
    host = np.zeros(8, "uint8")
    _kernels.cuda_register(host.ctypes.data, 8, 1)
    _kernels.cuda_copy(memory.address, host.ctypes.data, 8, stream.handle)
    _kernels.cuda_pack([(memory.address, 8, "uint8", 64, "uint8")], slot=memory.address, slot_bytes=72, stream=stream.handle)
    event.record(stream.handle)
    event.wait(stream.handle)
    made.append((event, stream, memory, host))


def end() -> None:
    # In a thread that has used no device.
    for event, stream, memory, host in made:
        event.synchronize()
        assert event.is_done()
        stream.synchronize()
        _kernels.cuda_unregister(host.ctypes.data, 1)
        for one in (event, stream, memory):
            one.close()


made = []
for step in (use_device_1, end):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
assert made
print(sorted(set(re.findall(r"standin-context-\\d", Path("/proc/self/maps").read_text()))))
"""


@pytest.mark.skipif(not cuda.is_standin, reason="a driver does not tell which contexts there are")
def test_work_on_one_device_makes_no_context_on_another() -> None:
    """A context takes some 500 MB of a device in each process; threads of ours have no current device."""
    done = subprocess.run(
        [sys.executable, "-c", CONTEXTS],
        env=os.environ | {"SOFTS_STANDIN_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "['standin-context-1']\n"), done.stderr
