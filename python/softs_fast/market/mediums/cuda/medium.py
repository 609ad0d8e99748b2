"""Samples in the memory of a CUDA device."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from .... import _core, _kernels
from ....errors import ConfigError, PeerLost, SegmentError, WireError
from ....identity import this_process
from ....process import check_process
from ....tensors import cuda, import_numpy
from ..base import Data
from ..segment import SegmentMedium
from .arena import Arena, await_event, errors_logged
from .slot_ticket import PAYLOAD_AT, RECEIPT_AT, RECEIPT_BYTES, Place, Receipt, Ticket
from .writers import Writers

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CudaIpcMedium"]

logger = logging.getLogger(__name__)


class CudaIpcMedium(SegmentMedium):
    """Slots in the memory of a CUDA device, for suppliers of the same user on the same machine.

    Orders travel as with `ShmMedium`: the medium is a segment with one ticket in each slot, which names the place of
    the sample on the device. Suppliers write there from their own process, from the same device or one with peer
    access, and a student's batches are tensors on the device. A supplier that cannot do that writes into the segment,
    which allocates memory only then, and logs the cause once per client. A client without a device gets its batches
    on the host.

    Args:
        address: name of the segment; default when creating: ``sl_`` and 16 hexadecimal digits.
        slot_size: bytes of one sample.
        num_slots: number of slots. All of their memory on the device is allocated at once, by cudaMalloc.
        create: create the medium rather than attach to one.
        device: number of the device, when creating; default: the current one of torch.
        **kwargs: ignored.

    Raises:
        ConfigError: no address to attach to, a malformed name, sizes that are out of range, or no such device.
        SegmentError: the name is taken, does not exist, belongs to another user or to another medium, or there is not
            enough memory on the host or on the device.
        WireError: the segment to attach to has no valid tickets.
    """

    native_kind = "tickets"

    def __init__(
        self,
        address: str | None,
        slot_size: int,
        num_slots: int,
        create: bool = False,
        *,
        device: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._arena: Arena | None = None
        self._writers: Writers | None = None
        self._owns_writers = False
        self._payloads: dict[int, np.ndarray[Any, Any]] = {}
        self._registered: list[tuple[int, int]] = []
        self._copies: _kernels.CudaStream | None = None
        self._has_warned = False
        self._pid = os.getpid()
        if create:
            segment = _core.Segment.create_tickets(address, self.slot_bytes(slot_size), num_slots)
            try:
                self._generation = self._fill_in(segment, slot_size, num_slots, device)
            except BaseException:
                segment.close()
                segment.unlink()
                raise
        elif address is None:
            raise ConfigError("address required when create=False")
        else:
            segment = _core.Segment.attach_tickets(address)
            # The slots of the segment are larger than samples.
            slot_size = Ticket.decode(segment.read(0, RECEIPT_AT)).payload_bytes
        super().__init__(segment, segment.address, slot_size, num_slots, create, **kwargs)

    @classmethod
    def slot_bytes(cls, slot_size: int) -> int:
        """Return the bytes of a slot in the segment: ticket, receipt, and space for the sample."""
        return -(-(PAYLOAD_AT + slot_size) // _BLOCK_BYTES) * _BLOCK_BYTES

    @classmethod
    def attach(cls, address: str) -> Self:
        """Attach to the medium of a client.

        Raises:
            ConfigError: the name is malformed.
            SegmentError: it does not exist, belongs to another user or another medium, or is damaged.
            WireError: the segment has no valid tickets.
        """
        return cls(address=address, slot_size=0, num_slots=0, create=False)

    @property
    def arena(self) -> Arena | None:
        """The slots on the device of this client; None if attached, closed, or without a device."""
        return self._arena

    def write(self, byte_offset: int, data: Data) -> bool:
        """Store one sample, as an attached supplier.

        Args:
            byte_offset: Offset of the slot within the segment.
            data: Sample of slot_size bytes.

        Returns:
            False, and a logged warning, if that was not possible; a supplier should attach again.
        """
        return self.write_if(byte_offset, data, lambda: True) is True

    def write_if(
        self, byte_offset: int, data: Data, may_write: Callable[[], bool], number: int = 0
    ) -> bool | None:
        """Write as `SegmentMedium.write_if` does; the sample goes to the client's device."""
        receipt = bytearray(RECEIPT_BYTES)

        def write() -> bool:
            if not may_write():
                return False
            if self._writers is None:
                self._writers, self._owns_writers = Writers(self.slot_size), True
            receipt[:] = self._writers.store(self._segment.reserve(byte_offset, PAYLOAD_AT), data)
            return True

        try:
            # The lock covers the receipt: one per slot.
            return self._segment.write_locked(byte_offset + RECEIPT_AT, receipt, write, number) or None
        except Exception as error:
            self._warn(byte_offset, error)
            return False

    def share_writers(self, writers: Writers) -> None:
        """Write through arenas that the supplier has opened and will close."""
        self._writers, self._owns_writers = writers, False

    def read(self, slot_id: int) -> bytes:
        """Copy a sample to the host, as the owner.

        Returns:
            slot_size bytes.

        Raises:
            PeerLost: the supplier was killed before its work on the device was done: the sample is lost.
            SegmentError: there is no such slot, or the medium is closed.
            ConfigError: this is not the owner.
            WireError: the slot has no sample.
            ForkedError: the owner is the parent process of this fork.
        """
        address = self.settle(slot_id)
        if address is None:
            return self._payload(slot_id).tobytes()
        data: np.ndarray[Any, Any] = import_numpy().empty(self.slot_size, "uint8")
        stream = self._stream()
        _kernels.cuda_copy(data.ctypes.data, address, self.slot_size, stream.handle)
        stream.synchronize()
        return data.tobytes()

    def read_into(self, slot_id: int, buffer: Any, start: int = 0) -> None:
        """Copy as `SegmentMedium.read_into` does; raises as `read`."""
        view = memoryview(buffer).cast("B")
        if start + len(view) > self.slot_size:
            raise SegmentError(
                f"segment {self.address!r}: {len(view)} bytes at {start} do not fit into a sample of {self.slot_size}"
            )
        view[:] = self.read(slot_id)[start : start + len(view)]

    def settle(self, slot_id: int) -> int | None:
        """As the owner, wait for the sample of a finished slot, and copy it to the device if it is in the segment.

        While the writer lives this waits for its device, and logs a warning every half a minute.

        Returns:
            Its address on the device; None if there is no device and the sample is in the segment.

        Raises:
            As `read`.
        """
        while not self.settle_within(slot_id, _WARN_AFTER_S):
            logger.warning(
                "medium %r: the device has not written the sample in slot %d for %.0f s, and its writer lives",
                self.address,
                slot_id,
                _WARN_AFTER_S,
            )
        return None if self._arena is None else self._arena.address(slot_id)

    def settle_within(self, slot_id: int, timeout_s: float) -> bool:
        """As `settle`, waiting for the writer's device at most so long.

        Returns:
            False: not within `timeout_s`. The slot may be released all the same: the next writer waits for the device.

        Raises:
            As `read`.
        """
        receipt = self._receipt(slot_id)
        arena, writer = self._arena, receipt.device_writer
        if arena is None:
            return True
        try:
            what = f"the sample in slot {slot_id} is lost"
            if (
                writer is not None
                and receipt.place != Place.IN_ARENA
                and not await_event(arena.filled[slot_id], writer, what, timeout_s)
            ):
                return False
        except PeerLost:
            # In the segment there is a later sample, and nothing writes over it on the device any more.
            if receipt.place == Place.AFTER_EVENT:
                raise
        if receipt.place == Place.IN_SEGMENT:
            self._copy_to_device(arena, slot_id)
        return True

    def _receipt(self, slot_id: int) -> Receipt:
        """Return the receipt of a finished slot; raises as `read`."""
        check_process(self._pid, "this medium")
        if not self.is_owner:
            raise ConfigError("only the client that owns a CudaIpcMedium reads from it")
        if not 0 <= slot_id < self.num_slots:
            raise SegmentError(f"segment {self.address!r} has no slot {slot_id}, it has {self.num_slots}")
        receipt = Receipt.decode(self._segment.read(self._at(slot_id) + RECEIPT_AT, RECEIPT_BYTES))
        if receipt.generation != self._generation or receipt.place == Place.NOWHERE:
            raise WireError(f"slot {slot_id} has no sample for this client: its receipt is {receipt}")
        if self._arena is None and receipt.place != Place.IN_SEGMENT:
            raise WireError(f"slot {slot_id}: its receipt places the sample on a device, but there is none")
        return receipt

    def drain(self, slot_ids: Iterable[int], stream: int) -> None:
        """Record, before slots are released, that a stream has read them; suppliers wait for that."""
        if self._arena is not None:
            for slot_id in slot_ids:
                self._arena.drained[slot_id].record(stream)

    def close(self) -> None:
        """Release the slots and, as the owner, the lock. Idempotent. The name stays until `unlink`.

        Memory on the device is freed when the last tensor on it is gone.
        """
        if self._pid == os.getpid():
            for address, device in self._registered:
                with errors_logged(f"medium {self.address!r}: a slot stays registered with CUDA"):
                    _kernels.cuda_unregister(address, device)
            if self._copies is not None:
                self._copies.close()
            if self._writers is not None and self._owns_writers:
                self._writers.close()
            self._arena = None
        self._registered.clear()
        self._payloads.clear()
        super().close()

    def _fill_in(self, segment: _core.Segment, slot_size: int, num_slots: int, device: int | None) -> int:
        """Allocate the arena, if there is a device, and write the tickets; return the generation."""
        n_devices = cuda.n_devices()
        if n_devices == 0:
            logger.warning(
                "no CUDA device here: samples of medium %r go through shared memory", segment.address
            )
            generation, owner = secrets.randbits(64), this_process()
            for slot_id in range(num_slots):
                ticket = Ticket(generation, slot_id, slot_size, owner)
                segment.write(slot_id * segment.slot_size, ticket.encode())
            return generation
        device = cuda.current_device() if device is None else device
        if not 0 <= device < n_devices:
            raise ConfigError(f"device must be from 0 to {n_devices - 1}, have {device}")
        try:
            self._arena = arena = Arena(num_slots, slot_size, device)
        except _kernels.CudaError as error:
            raise SegmentError(
                f"cannot allocate {num_slots} slots of {slot_size} bytes on CUDA device {device}: {error}; use fewer "
                "slots, or ShmMedium"
            ) from error
        for slot_id in range(num_slots):
            segment.write(slot_id * segment.slot_size, arena.ticket(slot_id).encode())
        return arena.generation

    def _at(self, slot_id: int) -> int:
        return slot_id * self._segment.slot_size

    def _stream(self) -> _kernels.CudaStream:
        """Return a stream for copies from and to the host, which does not wait for the user's work."""
        if self._copies is None:
            assert self._arena is not None
            self._copies = _kernels.CudaStream(self._arena.device)
        return self._copies

    def _payload(self, slot_id: int) -> np.ndarray[Any, Any]:
        """Return the sample of a slot in the segment, uint8 [slot_size]."""
        payload = self._payloads.get(slot_id)
        if payload is None:
            memory: Any = self._segment.reserve(self._at(slot_id), self._segment.slot_size)
            slot = import_numpy().frombuffer(memory, "uint8")
            if self._arena is not None:
                self._register(slot, self._arena.device)
            payload = self._payloads[slot_id] = slot[PAYLOAD_AT : PAYLOAD_AT + self.slot_size]
        return payload

    def _register(self, slot: np.ndarray[Any, Any], device: int) -> None:
        """Register the memory of a slot with CUDA, so that copies need no staging buffer."""
        try:
            _kernels.cuda_register(slot.ctypes.data, slot.nbytes, device)
        except _kernels.CudaError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "CUDA cannot register the slots of medium %r: %s; copies are slower", self.address, error
                )
        else:
            self._registered.append((slot.ctypes.data, device))

    def _copy_to_device(self, arena: Arena, slot_id: int) -> None:
        """Copy a sample from the segment to its slot in the arena once the last one was read, and wait for the copy."""
        payload, stream = self._payload(slot_id), self._stream()
        arena.drained[slot_id].wait(stream.handle)
        _kernels.cuda_copy(arena.address(slot_id), payload.ctypes.data, self.slot_size, stream.handle)
        stream.synchronize()


_WARN_AFTER_S = 30.0
#: Slot sizes in a segment of tickets are multiples of this.
_BLOCK_BYTES = 4096
