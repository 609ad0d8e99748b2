"""A supplier's access to the slots of its clients, by their tickets."""

from __future__ import annotations

import logging
import time
from typing import Any

from .... import _core, _kernels
from ....errors import ConfigError
from ....identity import Process
from ....tensors import import_numpy
from .remote_arena import DeviceSlot, RemoteArena, device_for
from .slot_ticket import PAYLOAD_AT, RECEIPT_AT, Place, Receipt, Ticket

__all__ = ["Writers"]

logger = logging.getLogger(__name__)


class Writers:
    """The open arenas of a supplier: each is opened once, for all of its slots, and closed after its client has ended.

    Args:
        slot_size: bytes of one sample.
    """

    def __init__(self, slot_size: int) -> None:
        self._slot_size = slot_size
        #: By generation and device.
        self._arenas: dict[tuple[int, int], RemoteArena] = {}
        self._slots: dict[tuple[bytes, int | None], DeviceSlot] = {}
        self._logged: set[int] = set()
        self._checked_at = time.monotonic()

    def slot(self, head: Any, device: int | None = None) -> DeviceSlot:
        """Return the slot of a ticket, and open its arena if necessary.

        Args:
            head: The `_core.Lease` of the slot in the segment.
            device: Number of the device on which the work is done; None: see `device_for`.

        Raises:
            WireError: the slot has no ticket, or a damaged one.
            ConfigError: the client's samples have another size.
        """
        # The whole ticket is the key: one that has changed in any way is decoded again.
        ticket = bytes(memoryview(head)[:RECEIPT_AT])
        slot = self._slots.get((ticket, device))
        if slot is None:
            slot = self._slots[ticket, device] = self._opened(head, Ticket.decode(ticket), device)
        return slot

    def receipt(self, slot: DeviceSlot, place: Place) -> bytes:
        """Return the receipt for a sample."""
        match place:
            case Place.AFTER_EVENT:
                return slot.after_event
            case Place.IN_SEGMENT:
                # A device may still write for an earlier sample, which the client waits for before it copies this one.
                writer: Process | None = slot.last_device_writer()
            case _:
                writer = slot.lost
        pid, start = (writer.pid, writer.started) if writer is not None else (0, 0)
        return Receipt(slot.ticket.generation, place, pid, start).encode()

    def store(self, head: Any, data: Any) -> bytes:
        """Write the bytes of one sample to a slot and wait until they are stored.

        Returns:
            The receipt to be written.

        Raises:
            ConfigError: the number of bytes is not that of a sample.
            PeerLost: the client has died, or the slot is not free, see `DeviceSlot.await_free`.
            SegmentError: the sample must go through the segment, which has no memory left.
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
        slot.await_free()
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
        """Close the arenas of clients that have ended, at most once a second; until then their memory stays allocated.

        Not to be called while a `DeviceSlot` is in use.
        """
        now = time.monotonic()
        if now - self._checked_at < _CHECK_INTERVAL_S:
            return
        self._checked_at = now
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
        # A copy of our own: the supplier releases the leases that it passes after each call.
        head = head.reserve(0, PAYLOAD_AT)
        device = device_for(ticket) if device is None else device
        arena = self._arenas.get((ticket.generation, device))
        if arena is None:
            arena = self._arenas[ticket.generation, device] = RemoteArena(ticket, device)
            arena.head = head
            # That of a client that has gone meanwhile cannot be opened either, and nothing reads its samples.
            if arena.refusal and not arena.is_gone and ticket.generation not in self._logged:
                self._logged.add(ticket.generation)
                pid = ticket.owner.pid
                logger.warning(
                    "samples for the client in process %d go through shared memory: %s", pid, arena.refusal
                )
        return DeviceSlot(arena, head, ticket)


_CHECK_INTERVAL_S = 1.0
