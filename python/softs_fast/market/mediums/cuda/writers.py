"""The slots of a supplier's clients, by their tickets."""

from __future__ import annotations

import logging
import time
from typing import Any

from .... import _core, _kernels
from ....errors import ConfigError
from ....tensors.dtypes import import_numpy
from .peer_process import this_process
from .remote_arena import DeviceSlot, RemoteArena, device_for
from .slot_ticket import RECEIPT_AT, Place, Receipt, Ticket

__all__ = ["Writers"]

logger = logging.getLogger(__name__)


class Writers:
    """The arenas that a supplier has open: each is opened once, for all of its slots, and closed when its client has gone.

    Args:
        slot_size: bytes of one sample.
    """

    def __init__(self, slot_size: int) -> None:
        self._slot_size = slot_size
        self._me = this_process()
        #: By generation and device.
        self._arenas: dict[tuple[int, int], RemoteArena] = {}
        self._slots: dict[tuple[bytes, int | None], DeviceSlot] = {}
        self._has_said: set[int] = set()
        self._looked = time.monotonic()

    def slot(self, head: Any, device: int | None = None) -> DeviceSlot:
        """Return the slot of a ticket, whose arena is opened if need be.

        Args:
            head: the `_core.Lease` of the slot in the segment.
            device: on which the work is done; None: see `device_for`.

        Raises:
            WireError: the slot has no ticket, or a damaged one.
            ConfigError: the client's samples have another size.
        """
        # All of it: a ticket that has changed in any way is looked at anew.
        ticket = bytes(memoryview(head)[:RECEIPT_AT])
        slot = self._slots.get((ticket, device))
        if slot is None:
            slot = self._slots[ticket, device] = self._opened(head, Ticket.decode(ticket), device)
        return slot

    def receipt(self, slot: DeviceSlot, place: Place) -> bytes:
        """Return the receipt for a sample."""
        return Receipt(slot.ticket.generation, place, self._me.pid, self._me.start).encode()

    def store(self, head: Any, data: Any) -> bytes:
        """Put the bytes of one sample into a slot; when this returns they are there.

        Returns:
            The receipt to be written.

        Raises:
            ConfigError: another number of bytes than a sample has.
            PeerLost: the client has died.
            SegmentError: it must go through the segment, which has no room.
            WireError, CudaError: as `slot`; the device has failed.
        """
        sample = import_numpy().frombuffer(data, "uint8")
        if sample.nbytes != self._slot_size:
            raise ConfigError(f"have {sample.nbytes} bytes, need slot_size={self._slot_size}")
        self.close_gone()
        slot = self.slot(head)
        if not slot.arena.is_open:
            slot.payload()[:] = sample
            return self.receipt(slot, Place.IN_SEGMENT)
        slot.await_drained()
        stream = slot.arena.stream
        _kernels.cuda_copy(slot.address, sample.ctypes.data, sample.nbytes, stream.handle)
        stream.synchronize()
        return self.receipt(slot, Place.IN_ARENA)

    def close(self) -> None:
        """Close all arenas. Idempotent."""
        self._slots.clear()
        while self._arenas:
            self._arenas.popitem()[1].close()

    def close_gone(self) -> None:
        """Close the arenas of clients that have gone, looked for once a second: until then the device keeps their memory.

        Not while a `DeviceSlot` is in use.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for key, arena in list(self._arenas.items()):
            if arena.is_gone:
                del self._arenas[key]
                self._slots = {of: slot for of, slot in self._slots.items() if slot.arena is not arena}
                arena.close()

    def _opened(self, head: _core.Lease, ticket: Ticket, device: int | None) -> DeviceSlot:
        if ticket.payload_bytes != self._slot_size:
            raise ConfigError(
                f"slot_size differs: this supplier has {self._slot_size}, the client {ticket.payload_bytes}"
            )
        # One of our own: the supplier gives up those that it brings after each call.
        head = head.reserve(0, RECEIPT_AT)
        device = device_for(ticket) if device is None else device
        arena = self._arenas.get((ticket.generation, device))
        if arena is None:
            arena = self._arenas[ticket.generation, device] = RemoteArena(ticket, device)
            arena.head = head
            if arena.refusal and ticket.generation not in self._has_said:
                self._has_said.add(ticket.generation)
                pid = ticket.owner.pid
                logger.warning(
                    "samples for the client in process %d go through shared memory: %s", pid, arena.refusal
                )
        return DeviceSlot(arena, head, ticket)


_LOOK_S = 1.0
