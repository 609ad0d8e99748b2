"""A supplier's view of a client's arena: its memory, a stream to work in, and references that pending work needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .... import _core, _kernels
from ....errors import PeerLost, SegmentError, WireError
from ....identity import Process, this_process
from ....tensors import cuda, import_numpy
from .arena import Arena, await_event, errors_logged, local_arena
from .slot_ticket import (
    PATTERN_BYTES,
    PAYLOAD_AT,
    RECEIPT_AT,
    RECEIPT_BYTES,
    Place,
    Receipt,
    Ticket,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["DeviceSlot", "RemoteArena", "Row", "device_for"]

#: Address, items and dtype of a tensor on the device; its offset in the slot in bytes, and dtype there: a row of
#: `_kernels.cuda_pack`.
Row = tuple[int, int, str, int, str]


class RemoteArena:
    """The arena of one client, opened for work on one device of this process.

    If it cannot be opened, `refusal` is set, and samples go through the segment instead.

    Args:
        ticket: any ticket of the client.
        device: number of the device that does the work.
    """

    def __init__(self, ticket: Ticket, device: int) -> None:
        self.owner = ticket.owner
        #: Why it cannot be opened; empty if it is open, or if the client has no device.
        self.refusal = ""
        self.is_open = False
        self.local: Arena | None = None
        self._mapping: _kernels.CudaMapping | None = None
        #: Any of its slots in the segment, to find out whether the client has closed it.
        self.head: _core.Lease | None = None
        self._in_flight: deque[tuple[_kernels.CudaEvent, object]] = deque()
        self._idle_events: list[_kernels.CudaEvent] = []
        if not ticket.device_id:
            return
        try:
            self._open(ticket, device)
        except (_Refused, _kernels.CudaError) as error:
            self.refusal = str(error)

    @property
    def is_gone(self) -> bool:
        """Whether the client has ended or has closed it, so that nothing reads what is written."""
        gone = self.head is not None and self.head.is_gone
        return gone or not self.owner.is_alive()

    def write(
        self,
        slots: Sequence[DeviceSlot],
        rows: Sequence[Sequence[Row]],
        copies: Sequence[Sequence[tuple[int, int, int]]],
        keep: object,
    ) -> list[Place]:
        """Write samples, one into each slot, after all work submitted to torch's current stream so far.

        Args:
            slots: Slots of this arena, drained.
            rows: Tensors on this device, for each slot.
            copies: Data on the host, for each slot: offset in the slot, address, bytes.
            keep: Owner of the memory of all these; it is referenced until the work is done.

        Returns:
            The place of each sample, for its receipt.
        """
        stream, ready = self.stream.handle, self._ready
        ready.record(cuda.current_stream(self.device))
        ready.wait(stream)
        if self.is_near:
            base, n_bytes, starts = self._base, self._n_bytes, [slot.ticket.offset for slot in slots]
        else:
            # Single stores to the memory of another device are slow, so the sample is copied there as a whole.
            stride = -(-slots[0].ticket.payload_bytes // _ALIGNMENT) * _ALIGNMENT
            scratch = cuda.empty((stride * len(slots),), "uint8", self.device)
            keep = (keep, scratch)
            base, n_bytes, starts = (
                scratch.data_ptr(),
                stride * len(slots),
                [i * stride for i in range(len(slots))],
            )
        table = [
            (address, count, dtype, start + offset, out)
            for start, of_slot in zip(starts, rows, strict=True)
            for address, count, dtype, offset, out in of_slot
        ]
        if table:
            _kernels.cuda_pack(table, slot=base, slot_bytes=n_bytes, stream=stream)
        for start, of_slot in zip(starts, copies, strict=True):
            for offset, address, size in of_slot:
                _kernels.cuda_copy(base + start + offset, address, size, stream)
        if self.is_near:
            places = [slot.finish(stream) for slot in slots]
            self._keep_until_done(keep)
            return places
        for slot, start in zip(slots, starts, strict=True):
            _kernels.cuda_copy(slot.address, base + start, slot.ticket.payload_bytes, stream)
        # An event belongs to one device, and this is another one.
        self.stream.synchronize()
        return [Place.IN_ARENA] * len(slots)

    def close(self) -> None:
        """Wait for the pending work and release the memory."""
        if self.is_open:
            with errors_logged(f"the last samples for process {self.owner.pid} may be incomplete"):
                self.stream.synchronize()
            self.stream.close()
            self._in_flight.clear()
            if self._mapping is not None:
                self._mapping.close()
            self.local = None
            self.is_open = False

    def address(self, ticket: Ticket) -> int:
        """Return the device address of a slot."""
        return self._base + ticket.offset

    def open_event(self, handle: bytes) -> _kernels.CudaEvent:
        """Open an event of the client."""
        return _kernels.CudaEvent.open(handle, self.device)

    def _open(self, ticket: Ticket, device: int) -> None:
        if cuda.n_devices() == 0:
            raise _Refused("this process has no CUDA device")
        if ticket.owner.namespace != this_process().namespace:
            raise _Refused("the client lives in another pid namespace")
        theirs = _visible(ticket.device_id)
        if theirs is not None and not _kernels.cuda_can_access(device, theirs):
            raise _Refused(
                f"CUDA device {device} cannot reach the client's, {theirs}: there is no peer access"
            )
        _kernels.cuda_load_kernels(device)
        self.device = device
        self.is_near = device == theirs
        self._n_bytes = ticket.arena_bytes
        arena = local_arena(ticket)
        if arena is None:
            self._mapping = _kernels.CudaMapping(ticket.arena, device)
            self._base = self._mapping.address
            self._check_pattern(ticket)
        else:
            #: The arena itself, if it belongs to this process.
            self.local = arena
            self._base = arena.memory.address
        self.stream = _kernels.CudaStream(device)
        self._ready = _kernels.CudaEvent(device)
        self.is_open = True

    def _check_pattern(self, ticket: Ticket) -> None:
        """Raises _Refused: this device reads other data than the client has written."""
        at = self._base + ticket.arena_bytes - PATTERN_BYTES
        if cuda.read_by_kernel(at, PATTERN_BYTES, self.device) != ticket.generation.to_bytes(8, "little"):
            assert self._mapping is not None
            self._mapping.close()
            raise _Refused(
                f"CUDA device {self.device} reads other data in the client's memory than the client has written: peer "
                "access does not work on this machine"
            )

    def _keep_until_done(self, keep: object) -> None:
        """Keep a reference until the stream has completed all work submitted so far."""
        in_flight = self._in_flight
        while in_flight and in_flight[0][0].is_done():
            self._idle_events.append(in_flight.popleft()[0])
        event = self._idle_events.pop() if self._idle_events else _kernels.CudaEvent(self.device)
        event.record(self.stream.handle)
        in_flight.append((event, keep))


class DeviceSlot:
    """A slot of a client, opened for writing.

    Args:
        arena: the client's arena.
        head: the slot in the segment.
        ticket: the ticket in that slot.
    """

    def __init__(self, arena: RemoteArena, head: _core.Lease, ticket: Ticket) -> None:
        self.arena = arena
        self.ticket = ticket
        self._head = head
        self._payload: np.ndarray[Any, Any] | None = None
        view: Any = head
        self._receipt = memoryview(view)[RECEIPT_AT : RECEIPT_AT + RECEIPT_BYTES]
        me = this_process()
        self._begun = self._encoded(Place.NOWHERE, me)
        #: The receipt of a sample for which this process has recorded `filled`.
        self.after_event = self._encoded(Place.AFTER_EVENT, me)
        #: The process that recorded `filled` last, if it was killed before the event was done.
        self.lost: Process | None = None
        if arena.is_open:
            self.address = arena.address(ticket)
            local = arena.local
            if local is None:
                self.filled = arena.open_event(ticket.filled)
                self._drained = arena.open_event(ticket.drained)
            else:
                self.filled, self._drained = local.filled[ticket.slot_id], local.drained[ticket.slot_id]

    def await_free(self) -> None:
        """Wait until the client has read the last sample, and no device writes it any more; then name this process.

        The name is in the receipt before any event is recorded: of a process that is killed in between, no event is ever
        done, nor is one that another process records after it. So the next writer must find out which process recorded it,
        and leaves the event, and the name, as they are.

        A client may release a slot before its sample is there, because another product is wanted. So the next writer
        waits: it alone knows that it writes.

        Raises:
            PeerLost: the client has died, or a device was busy with other work for half a minute.
        """
        owner, what = self.arena.owner, "the client has not read the last sample of this slot"
        if not await_event(self._drained, owner, what, _TIMEOUT_S):
            raise PeerLost(f"{what}: not within {_TIMEOUT_S:.0f} s, and process {owner.pid} lives")
        # Most often the last writer is this process, and is done: its receipt need not be decoded, which takes longer.
        if self.lost is not None or bytes(self._receipt) != self.after_event or not self.filled.is_done():
            self._await_last_writer()
        self._receipt[:] = self._begun if self.lost is None else self._encoded(Place.NOWHERE, self.lost)

    def _encoded(self, place: Place, writer: Process) -> bytes:
        return Receipt(self.ticket.generation, place, writer.pid, writer.started).encode()

    def _await_last_writer(self) -> None:
        last, what = self.last_device_writer(), "a device still writes the last sample of this slot"
        if last is None or last != self.lost:
            self.lost = None
            try:
                if last is not None and not await_event(self.filled, last, what, _TIMEOUT_S):
                    raise PeerLost(f"{what}: not within {_TIMEOUT_S:.0f} s, and process {last.pid} lives")
            except PeerLost:
                if last is None or last.is_alive():
                    raise
                # The work of a process ends with it.
                self.lost = last

    def finish(self, stream: int) -> Place:
        """Let the client know when all earlier work of a stream is done; return the place of the sample."""
        if self.lost is None:
            self.filled.record(stream)
            return Place.AFTER_EVENT
        done = _kernels.CudaEvent(self.arena.device)
        done.record(stream)
        done.synchronize()
        return Place.IN_ARENA

    def last_device_writer(self) -> Process | None:
        """Return the process for which a device may still write to the slot."""
        try:
            last = Receipt.decode(self._receipt)
        except WireError:
            return None
        return last.device_writer if last.generation == self.ticket.generation else None

    def payload(self) -> np.ndarray[Any, Any]:
        """Return the memory of a sample in the segment, uint8 [payload_bytes].

        Raises:
            SegmentError: there is no room for it.
        """
        if self._payload is None:
            memory: Any = self._head.reserve(PAYLOAD_AT, self.ticket.payload_bytes)
            self._payload = import_numpy().frombuffer(memory, "uint8")
        return self._payload


def device_for(ticket: Ticket) -> int:
    """Return the device that does the work for a client: the client's if it is visible here, else the current one."""
    if cuda.n_devices() == 0:
        return 0
    theirs = _visible(ticket.device_id)
    return cuda.current_device() if theirs is None else theirs


def _visible(device_id: str) -> int | None:
    """Return the number of the device of this process that has an id."""
    ids = [cuda.device_id(i) for i in range(cuda.n_devices())]
    return ids.index(device_id) if device_id in ids else None


class _Refused(SegmentError):
    """An arena cannot be opened."""


_ALIGNMENT = 256
_TIMEOUT_S = 30.0
