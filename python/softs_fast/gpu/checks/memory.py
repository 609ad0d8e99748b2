"""Memory and events that two processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from softs_fast import _kernels
from softs_fast.gpu import ranks
from softs_fast.tensors import cuda

from .expect import expect
from .on_device import synchronize, to_device

__all__ = ["check"]

_N_ITEMS = 1000
_N_ROUNDS = 20


def check(quick: bool = False) -> dict[str, Any]:
    """Check that what is copied after the event `filled` is what the other process wrote, not overwritten before `drained`.

    Raises:
        AssertionError: it is not; the text has the traceback of the process that saw it.
    """
    pipes = Pipe()
    try:
        ranks.run(_exchange, 2, pipes)
    finally:
        for pipe in pipes:
            pipe.close()
    return {"note": f"{_N_ROUNDS} exchanges"}


def _exchange(say: Callable[[Any], None], rank: int, size: int, pipes: Sequence[Connection]) -> None:
    # The other end is the other rank's: closed here, its death is an end-of-file.
    pipes[1 - rank].close()
    (_read, _write)[rank](pipes[rank])


def _read(pipe: Connection) -> None:
    """Own memory and events; take what the other rank writes."""
    memory = _kernels.CudaMemory(8 * _N_ITEMS, 0)
    slot = cuda.tensor_over(memory.address, "int64", [_N_ITEMS], [1], 0, memory)
    expect(not slot.any(), "new memory is not zeroed")
    filled, drained = _kernels.CudaEvent(0), _kernels.CudaEvent(0)
    pipe.send((memory.handle, filled.handle, drained.handle))
    stream = _kernels.CudaStream(0)
    taken = to_device(torch.zeros(_N_ITEMS, dtype=torch.int64))
    for i in range(1, _N_ROUNDS + 1):
        _receive(pipe, i)
        filled.wait(stream.handle)
        _kernels.cuda_copy(taken.data_ptr(), memory.address, memory.n_bytes, stream.handle)
        drained.record(stream.handle)
        pipe.send(i)
        drained.synchronize()
        expect(drained.is_done(), "an event that was waited for is not done")
        expect((taken == i).all(), f"round {i}: {taken[taken != i].tolist()[:3]} instead of {i}")
    # The writer has closed the memory.
    _receive(pipe, 0)


def _write(pipe: Connection) -> None:
    """Write 1, 2, ... to the memory of the other rank, each once the one before was taken."""
    expect(pipe.poll(ranks.WATCHDOG_S), "the owner of the memory sends no handles")
    memory_handle, filled_handle, drained_handle = pipe.recv()
    memory = _kernels.CudaMapping(memory_handle, 0)
    filled, drained = (_kernels.CudaEvent.open(handle, 0) for handle in (filled_handle, drained_handle))
    stream = _kernels.CudaStream(0)
    for i in range(1, _N_ROUNDS + 1):
        source = to_device(torch.full((_N_ITEMS,), i))
        synchronize(0)
        drained.wait(stream.handle)
        _kernels.cuda_copy(memory.address, source.data_ptr(), source.nbytes, stream.handle)
        filled.record(stream.handle)
        pipe.send(i)
        _receive(pipe, i)
        stream.synchronize()
    stream.close()
    memory.close()
    pipe.send(0)


def _receive(pipe: Connection, number: int) -> None:
    expect(pipe.poll(ranks.WATCHDOG_S), f"the other process does not send {number}")
    got = pipe.recv()
    expect(got == number, f"the other process sent {got}; need {number}")
