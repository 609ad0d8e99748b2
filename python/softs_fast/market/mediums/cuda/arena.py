"""A client's slots on its device, and waits for the work of other processes there.

No stream waits for an event of another process: if that process is killed, the event never completes, and a wait that
was submitted to a stream cannot be cancelled. So a thread waits, and checks whether the other process is alive.
"""

from __future__ import annotations

import os
import secrets
import time
import weakref

from .... import _kernels
from ....errors import PeerLost
from .peer_process import is_alive, this_process
from .slot_ticket import Process, Ticket

__all__ = ["Arena", "await_event", "local_arena"]


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
        self.memory = _kernels.CudaMemory(n_slots * self.stride, device)
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
            _kernels.cuda_device_id(self.device),
            slot_id * self.stride,
            self.memory.n_bytes,
            self.memory.handle,
            self.filled[slot_id].handle,
            self.drained[slot_id].handle,
        )

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
        event: recorded by another process.
        recorder: that process.
        what: consequence of an event that does not complete, for the error.
        timeout_s: the longest wait.

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
            if not is_alive(recorder) and not event.is_done():
                raise PeerLost(f"{what}: process {recorder.pid} has ended")
        if now - began >= timeout_s:
            return False
        time.sleep(pause_s)
        pause_s = min(_LONGEST_S, pause_s + _STEP_S)
    return True


#: Alignment of the widest loads of a device, and of tensors of all dtypes.
_ALIGNMENT = 256
#: Interval of checks that the other process is alive, and the longest sleep; a kernel takes some microseconds.
_CHECK_INTERVAL_S = 0.01
_LONGEST_S = 0.001
_STEP_S = 0.00001
_arenas: weakref.WeakValueDictionary[int, Arena] = weakref.WeakValueDictionary()
#: Arenas that a fork must not free.
_of_parents: list[object] = []
