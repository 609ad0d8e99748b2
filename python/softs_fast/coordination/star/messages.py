"""What the ranks of a star say to each other: msgpack, by position."""

from __future__ import annotations

import socket
from typing import Annotated, Self

from ... import identity
from ...records import U32, Count, Message, Packed, Tag64, most
from ..job.messages import Text, WorkerId
from .options import LARGEST_PIECE

__all__ = [
    "MAX_OVERHEAD_BYTES",
    "METHOD",
    "PROTOCOL",
    "SERVICE",
    "Differ",
    "Envelope",
    "Join",
    "Late",
    "Leave",
    "Letter",
    "Lost",
    "Part",
    "Said",
    "StarProcess",
    "Welcome",
    "decode",
    "encode",
]

#: Version 1 had messages of protobuf; a rank of another version is told that there is no such service.
SERVICE = "softs.star.v2.Star"
METHOD = "Reduce"
#: Of these messages; all ranks must have the same.
PROTOCOL = 2
_STATES = {"ended": "has ended", "stopped": "is stopped", "traced": "is stopped"}
#: Of a message, beside the data of a piece: room for the longest texts.
MAX_OVERHEAD_BYTES = 64 << 10


class StarProcess(Message):
    """A process of a rank.

    Attributes:
        worker_id: Name of its worker; empty without a coordinator.
        machine: Name of the machine as it runs now, and of the namespace of its process numbers.
        host: Name of the machine, for people.
        pid: Number of the process.
        started: Time at which the process started, by the clock of its machine.
    """

    worker_id: WorkerId
    machine: Text
    host: Text
    pid: Count
    started: Count

    @classmethod
    def this(cls, worker_id: str = "") -> Self:
        """Return this process."""
        pid, started, _ = identity.this_process()
        return cls(worker_id, identity.host_id(), socket.gethostname(), pid, started)

    @property
    def state(self) -> str:
        """What has become of a process of this machine: "has ended", "is stopped", or empty if it is not known."""
        if not self.machine or self.machine != identity.host_id():
            return ""
        namespace = identity.this_process().namespace
        if not identity.Process(self.pid, self.started, namespace).is_alive():
            return "has ended"
        return _STATES.get(identity.state_of(self.pid), "")

    def __str__(self) -> str:
        name = f'worker "{self.worker_id}", ' if self.worker_id else ""
        return f"{name}process {self.pid} on {self.host}"


class Join(Message, tag=1):
    """Asks for the place of a rank; the first message of a stream.

    Attributes:
        size: Number of ranks.
        piece_bytes: Largest number of bytes of a piece.
        protocol: Version of the protocol, PROTOCOL.
        process: Process that asks.
    """

    size: U32
    piece_bytes: U32
    protocol: U32
    process: StarProcess


class Part(Message, tag=2):
    """A piece of a call; the first one of a rank may be empty.

    Attributes:
        sequence: Number of the call in the epoch, from 1.
        tag: Hash of the call, its tensors and their names.
        piece: Number of the piece in the call.
        data: Data of the piece.
    """

    sequence: Count
    tag: Tag64
    piece: Count
    data: Annotated[bytes, most(LARGEST_PIECE)]


class Late(Message, tag=3):
    """A call has waited for too long."""

    sequence: Count


class Leave(Message, tag=4):
    """This rank takes part in no call after `last`.

    Attributes:
        last: Number of the last call in which this rank takes part.
        reason: Reason, as text for the user.
        is_failure: Whether no call can continue.
    """

    last: Count
    reason: Text
    is_failure: bool


class Welcome(Message, tag=5):
    """The rank has its place; the process is that of rank 0."""

    process: StarProcess


class Differ(Message, tag=6):
    """The calls of the ranks are not the same: nothing was reduced."""

    sequence: Count


class Lost(Message, tag=7):
    """The group is over."""

    text: Text


class Envelope(Message):
    """What is on each message.

    Attributes:
        boot: Random number that names the epoch together with the epoch's number.
        epoch: Number of the epoch.
        rank: Rank that sends; 0 for rank 0.
    """

    boot: Tag64
    epoch: Count
    rank: U32

    def __str__(self) -> str:
        return f"epoch {self.epoch} (boot {self.boot:016x})"


#: What a rank says, then what rank 0 says, which has pieces too.
Said = Join | Part | Late | Leave | Welcome | Differ | Lost


class Letter(Message):
    """A message in its envelope."""

    envelope: Envelope
    message: Said


_LETTERS: Packed[Letter] = Packed(
    Letter, most_bytes=LARGEST_PIECE + MAX_OVERHEAD_BYTES, what="message of a star"
)


def encode(envelope: Envelope, message: Said) -> bytes:
    """Encode a message.

    Raises:
        WireError: a number is out of range, or it is too long.
    """
    return _LETTERS.encode(Letter(envelope, message))


def decode(data: bytes) -> tuple[Envelope, Said]:
    """Decode a message.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    letter = _LETTERS.decode(data)
    return letter.envelope, letter.message
