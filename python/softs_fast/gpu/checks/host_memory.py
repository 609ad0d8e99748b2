"""Questions about host memory that is registered with CUDA, and streams that wait for a word in it."""

from __future__ import annotations

import mmap
import tempfile
import time
from typing import Any, Protocol

import numpy as np

from softs_fast import _kernels

__all__ = ["registration", "waiter", "writer"]

_PAGE_BYTES = 4096
_SIZES = (1 << 20, 64 << 20)


class Talk(Protocol):
    """What a role of a question can do."""

    def say(self, part: dict[str, Any], /) -> None:
        """Write a part of the answer down."""

    def send(self, thing: object) -> None:
        """Send something to the other process."""

    def receive(self) -> Any:
        """Return what the other process sends."""


def registration(talk: Talk) -> None:
    """Ask what it costs to register shared memory, by size."""
    # The device, so that its own start is not measured.
    _kernels.CudaStream(0).close()
    for n_bytes in _SIZES:
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sf-probe-") as file:
            file.truncate(n_bytes)
            memory = np.frombuffer(mmap.mmap(file.fileno(), n_bytes), dtype=np.uint8)
            memory[::_PAGE_BYTES] = 1
            address = memory.ctypes.data
            began = time.perf_counter()
            _kernels.cuda_register(address, n_bytes, 0)
            registered = time.perf_counter()
            _kernels.cuda_unregister(address, 0)
            ended = time.perf_counter()
            took = [round((registered - began) * 1e3, 3), round((ended - registered) * 1e3, 3)]
            talk.say({f"{n_bytes >> 20} MiB, register and unregister, ms": took})


def waiter(talk: Talk) -> None:
    """Ask whether a stream waits for a word that another process writes, and writes one that the host sees."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sf-probe-") as file:
        file.truncate(_PAGE_BYTES)
        words = np.frombuffer(mmap.mmap(file.fileno(), _PAGE_BYTES), dtype=np.uint32)
        stream, event = _kernels.CudaStream(0), _kernels.CudaEvent(0)
        there = _kernels.cuda_map_host(words.ctypes.data, _PAGE_BYTES, 0)
        talk.say({"the device's address is the host's": there == words.ctypes.data})
        _kernels.cuda_wait_for_word(there, 1, 0, stream.handle)
        _kernels.cuda_write_word(there + 4, 7, 0, stream.handle)
        event.record(stream.handle)
        time.sleep(0.1)
        talk.say({"done before the word is written": event.is_done()})
        talk.send(file.name)
        talk.receive()
        began = time.perf_counter()
        while time.perf_counter() - began < 2.0 and not event.is_done():
            time.sleep(0)
        took = time.perf_counter() - began
        talk.say({"done after the word was written": event.is_done(), "us after it": round(took * 1e6, 1)})
        talk.say({"the host sees what the stream wrote": int(words[1]) == 7})
        _kernels.cuda_unregister(words.ctypes.data, 0)


def writer(talk: Talk) -> None:
    """Write the word for which the other process's stream waits."""
    with open(talk.receive(), "r+b") as file:
        words = np.frombuffer(mmap.mmap(file.fileno(), _PAGE_BYTES), dtype=np.uint32)
        words[0] = 1
        talk.send("written")
