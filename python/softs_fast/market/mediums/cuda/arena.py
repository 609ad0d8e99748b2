"""A client's slots on its device, and waits for the work of other processes there.

No stream waits for an event of another process: if that process is killed, the event never completes, and a wait that
was submitted to a stream cannot be cancelled. So a thread waits, and checks whether the other process is alive.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from .... import _kernels
from ....errors import PeerLost
from ....identity import Process, this_process
from ....tensors import cuda, import_numpy
from .slot_ticket import PATTERN_BYTES, Ticket

__all__ = ["Arena", "await_event", "errors_logged", "local_arena"]

logger = logging.getLogger(__name__)


class Arena:
    """Memory for the slots of one client on a device, with two events per slot, freed with its last reference.

    Args:
        n_slots: number of slots.
        payload_bytes: bytes of a sample.
        device: number of the device.

    Raises:
        CudaError: there is no such device, or not enough memory on it, or its memory cannot be shared.
    """

    def __init__(self, n_slots: int, payload_bytes: int, device: int) -> None:
        self.device = device
        self.payload_bytes = payload_bytes
        #: Bytes from one slot to the next.
        self.stride = -(-payload_bytes // _ALIGNMENT) * _ALIGNMENT
        self.generation = secrets.randbits(64)
        self.memory = _kernels.CudaMemory(n_slots * self.stride + PATTERN_BYTES, device)
        self._write_pattern()
        self.filled = [_kernels.CudaEvent(device) for _ in range(n_slots)]
        self.drained = [_kernels.CudaEvent(device) for _ in range(n_slots)]
        self._pid = os.getpid()
        _arenas[self.generation] = self

    def address(self, slot_id: int) -> int:
        """Return the device address of a slot."""
        return self.memory.address + slot_id * self.stride

    def ticket(self, slot_id: int) -> Ticket:
        """Return the ticket of a slot, by which another process opens it."""
        return Ticket(
            self.generation,
            slot_id,
            self.payload_bytes,
            this_process(),
            cuda.device_id(self.device),
            slot_id * self.stride,
            self.memory.n_bytes,
            self.memory.handle,
            self.filled[slot_id].handle,
            self.drained[slot_id].handle,
        )

    def _write_pattern(self) -> None:
        """Write the generation behind the slots, by which another process checks what it has opened."""
        pattern = import_numpy().array([self.generation], "<u8")
        stream = _kernels.CudaStream(self.device)
        at = self.memory.address + self.memory.n_bytes - PATTERN_BYTES
        _kernels.cuda_copy(at, pattern.ctypes.data, PATTERN_BYTES, stream.handle)
        stream.synchronize()
        stream.close()

    def __del__(self) -> None:
        """Drop the arenas in a forked child: their memory is the parent's, and CUDA does not work there."""
        if hasattr(self, "_pid") and self._pid != os.getpid():
            _of_parents.append((self.memory, self.filled, self.drained))


def local_arena(ticket: Ticket) -> Arena | None:
    """Return the arena of a ticket if this process owns it: CUDA does not open handles of the same process."""
    arena = _arenas.get(ticket.generation)
    return arena if arena is not None and arena._pid == os.getpid() == ticket.owner.pid else None


def await_event(event: _kernels.CudaEvent, recorder: Process, what: str, timeout_s: float) -> bool:
    """Wait until the last record of an event has completed.

    Args:
        event: Event recorded by another process.
        recorder: Process that recorded the event.
        what: Consequence of an event that does not complete, for the text of the error.
        timeout_s: Longest wait, seconds.

    Returns:
        Whether it has completed. If not, the device may still work for that process.

    Raises:
        PeerLost: the process has ended, and the event has not completed.
    """
    if event.is_done():
        return True
    began = checked_at = time.monotonic()
    pause_s = 0.0
    while not event.is_done():
        now = time.monotonic()
        if now - checked_at >= _CHECK_INTERVAL_S:
            checked_at = now
            # The event may have completed before the process ended.
            if not recorder.is_alive() and not event.is_done():
                raise PeerLost(f"{what}: process {recorder.pid} has ended")
        if now - began >= timeout_s:
            return False
        time.sleep(pause_s)
        if now - began >= _SPIN_S:
            pause_s = min(_LONGEST_S, pause_s + _STEP_S)
    return True


@contextmanager
def errors_logged(what: str) -> Iterator[None]:
    """Log an error of CUDA instead of raising it, in a release of which the rest must be done all the same.

    A kernel that fails makes every later call of CUDA in the process fail.
    """
    try:
        yield
    except _kernels.CudaError as error:
        logger.warning("%s: %s", what, error)


#: Alignment of the widest loads of a device, and of tensors of all dtypes.
_ALIGNMENT = 256
#: Interval of checks that the other process is alive, and the longest sleep; a kernel takes some microseconds.
_CHECK_INTERVAL_S = 0.01
_LONGEST_S = 0.001
#: At first it only lets other threads run: sleeps would dominate the time of a slot.
_SPIN_S = 0.0003
_STEP_S = 0.00001
_arenas: weakref.WeakValueDictionary[int, Arena] = weakref.WeakValueDictionary()
#: Arenas that a fork must not free.
_of_parents: list[object] = []
