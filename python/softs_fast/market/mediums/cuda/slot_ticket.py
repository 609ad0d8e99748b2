"""Ticket and receipt at the beginning of a `CudaIpcMedium`'s slot: where samples go, and where the last one went.

Pure encoding and decoding; docs/segment.md, section 5, has the table. The bytes come from another process and are
checked.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from ....errors import WireError
from ....identity import Process

__all__ = [
    "PATTERN_BYTES",
    "PAYLOAD_AT",
    "RECEIPT_AT",
    "RECEIPT_BYTES",
    "Place",
    "Receipt",
    "Ticket",
]

#: Offset of the receipt in a slot, behind the ticket.
RECEIPT_AT = 384
RECEIPT_BYTES = 32
#: Offset of the payload in a slot, for samples that go through the segment itself.
PAYLOAD_AT = 512
#: Bytes at the end of an arena, which hold its generation.
PATTERN_BYTES = 8


@dataclass(frozen=True)
class Ticket:
    """The place for the samples of one slot. Written once, by the client that owns the slot.

    Attributes:
        generation: random number of an arena; a client that restarts has another one.
        slot_id: number of the slot, so that no two tickets are the same.
        payload_bytes: bytes of a sample.
        owner: the client's process.
        device_id: UUID of its device, 32 hexadecimal digits; empty without a device, for samples through the segment.
        offset: offset of the slot in the arena, bytes; this and the rest only with a device.
        arena_bytes: size of the arena; its last PATTERN_BYTES hold the generation.
        arena: handle by which another process opens the arena.
        filled: handle of the event that a supplier records when a sample is in the slot.
        drained: handle of the event that the client records when it has read a sample.
    """

    generation: int
    slot_id: int
    payload_bytes: int
    owner: Process
    device_id: str = ""
    offset: int = 0
    arena_bytes: int = 0
    arena: bytes = bytes(64)
    filled: bytes = bytes(64)
    drained: bytes = bytes(64)

    def encode(self) -> bytes:
        """Return the ticket as RECEIPT_AT bytes."""
        owner = self.owner
        body = _TICKET.pack(
            _MAGIC,
            _VERSION,
            _ON_DEVICE if self.device_id else _ON_HOST,
            self.generation,
            self.payload_bytes,
            self.offset,
            self.arena_bytes,
            owner.pid,
            self.slot_id,
            owner.started,
            owner.namespace,
            self.device_id.encode(),
            self.arena,
            self.filled,
            self.drained,
        ).ljust(_SUM_AT, b"\0")
        return (body + zlib.crc32(body).to_bytes(4, "little")).ljust(RECEIPT_AT, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Ticket:
        """Return the ticket in RECEIPT_AT bytes.

        Raises:
            WireError: they are no ticket, one of another version, or damaged.
        """
        if len(data) != RECEIPT_AT or data[:8] != _MAGIC:
            raise WireError(
                "the slot has no ticket; a process has written over it, or its client has another medium"
            )
        (
            _,
            version,
            kind,
            generation,
            payload,
            offset,
            arena_bytes,
            pid,
            slot_id,
            start,
            namespace,
            device_id,
            *handles,
        ) = _TICKET.unpack_from(data)
        if version != _VERSION:
            raise WireError(
                f"the slot has a ticket of version {version}, this softs-fast knows {_VERSION}: both peers must be of "
                "the same version"
            )
        if int.from_bytes(data[_SUM_AT : _SUM_AT + 4], "little") != zlib.crc32(data[:_SUM_AT]):
            raise WireError("the slot's ticket is damaged: a process has written over it")
        owner = Process(pid, start, namespace)
        if kind == _ON_HOST:
            return cls(generation, slot_id, payload, owner)
        if (
            kind != _ON_DEVICE
            or offset > arena_bytes
            or payload + PATTERN_BYTES > arena_bytes - offset
            or not device_id.isalnum()
        ):
            raise WireError(
                f"the slot's ticket cannot be: kind {kind}, {payload} bytes at {offset} of an arena of {arena_bytes} bytes"
            )
        return cls(
            generation, slot_id, payload, owner, device_id.decode("ascii"), offset, arena_bytes, *handles
        )


class Place(IntEnum):
    """The place of a sample, and the condition under which it may be read."""

    #: Nowhere: no supplier has written since the last sample was taken.
    NOWHERE = 0
    #: In the arena, once the event `filled` has completed.
    AFTER_EVENT = 1
    #: In the arena.
    IN_ARENA = 2
    #: In the payload of the slot.
    IN_SEGMENT = 3


@dataclass(frozen=True)
class Receipt:
    """A supplier's record of a sample that it put into a slot, written before the order ends.

    Attributes:
        generation: Generation of the ticket.
        place: Place of the sample.
        writer_pid: Number of the process that recorded the event `filled` last, 0 if none did; its namespace is that
            of the ticket's owner.
        writer_start: Time at which that process started.
    """

    generation: int
    place: Place
    writer_pid: int
    writer_start: int

    @property
    def device_writer(self) -> Process | None:
        """The process for which a device may still write to the slot."""
        return Process(self.writer_pid, self.writer_start, 0) if self.writer_pid else None

    def encode(self) -> bytes:
        """Return the receipt as RECEIPT_BYTES bytes."""
        return _RECEIPT.pack(self.generation, self.place, self.writer_pid, self.writer_start).ljust(
            RECEIPT_BYTES, b"\0"
        )

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Receipt:
        """Return the receipt in RECEIPT_BYTES bytes.

        Raises:
            WireError: they are no receipt.
        """
        generation, place, pid, start = _RECEIPT.unpack_from(data)
        if place not in _PLACES:
            raise WireError(f"the slot has no receipt: its place is {place}; a process has written over it")
        return cls(generation, Place(place), pid, start)


_MAGIC = b"SLTICKET"
_VERSION = 1
_ON_HOST, _ON_DEVICE = 0, 1
#: Magic, version, kind; generation, payload, offset, arena; pid, slot, start, namespace; device; three handles.
_TICKET = struct.Struct("<8sII QQQQ IIQQ 32s 64s64s64s")
#: A checksum of all bytes before it.
_SUM_AT = 376
_RECEIPT = struct.Struct("<QIIQ")
_PLACES = frozenset(Place)
assert _TICKET.size <= _SUM_AT
assert _RECEIPT.size <= RECEIPT_BYTES
