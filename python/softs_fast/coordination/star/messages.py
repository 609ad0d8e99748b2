"""What the ranks of a star say to each other, as values, and to bytes and back. Every limit is checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from ...errors import WireError
from ..wire.convert import fill, read
from . import star_pb2

__all__ = [
    "MAX_OVERHEAD_BYTES",
    "METHOD",
    "PROTOCOL",
    "SERVICE",
    "Differ",
    "Envelope",
    "FromRank",
    "FromRoot",
    "Join",
    "Late",
    "Leave",
    "Lost",
    "Part",
    "StarProcess",
    "Welcome",
    "decode_from_rank",
    "decode_from_root",
    "encode_from_rank",
    "encode_from_root",
]

SERVICE = "softs.star.v1.Star"
METHOD = "Reduce"
#: Of these messages; all ranks must have the same.
PROTOCOL = 1
#: Of a message, beside the data of a piece: room for the longest texts.
MAX_OVERHEAD_BYTES = 64 << 10

#: The generated module, which has no types.
_pb: Any = star_pb2


@dataclass(frozen=True)
class StarProcess:
    """A process of a rank.

    Attributes:
        worker_id: Name of its worker; empty without a coordinator.
        machine: Name of the machine as it runs now, and of the namespace of its process numbers.
        host: Name of the machine, for people.
        pid: Number of the process.
        started: Time at which the process started, by the clock of its machine.
    """

    worker_id: str = ""
    machine: str = ""
    host: str = ""
    pid: int = 0
    started: int = 0

    def __str__(self) -> str:
        name = f'worker "{self.worker_id}", ' if self.worker_id else ""
        return f"{name}process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Join:
    """Asks for the place of a rank; the first message of a stream.

    Attributes:
        size: Number of ranks.
        piece_bytes: Largest number of bytes of a piece.
        protocol: Version of the protocol, PROTOCOL.
        process: Process that asks.
    """

    size: int
    piece_bytes: int
    protocol: int
    process: StarProcess


@dataclass(frozen=True)
class Part:
    """A piece of a call; the first one of a rank may be empty.

    Attributes:
        sequence: Number of the call in the epoch, from 1.
        tag: Hash of the call, its tensors and their names.
        piece: Number of the piece in the call.
        data: Data of the piece.
    """

    sequence: int
    tag: int
    piece: int
    data: bytes = b""


@dataclass(frozen=True)
class Late:
    """A call has waited for too long."""

    sequence: int


@dataclass(frozen=True)
class Leave:
    """This rank takes part in no call after `last`.

    Attributes:
        last: Number of the last call in which this rank takes part.
        why: Reason, as text for the user.
        is_failure: Whether no call can continue.
    """

    last: int
    why: str
    is_failure: bool


@dataclass(frozen=True)
class Welcome:
    """The rank has its place; the process is that of rank 0."""

    process: StarProcess


@dataclass(frozen=True)
class Differ:
    """The calls of the ranks are not the same: nothing was reduced."""

    sequence: int


@dataclass(frozen=True)
class Lost:
    """The group is over."""

    text: str


FromRank = Join | Part | Late | Leave
FromRoot = Welcome | Part | Differ | Lost

_FROM_RANK: dict[str, type] = {"join": Join, "part": Part, "late": Late, "leave": Leave}
_FROM_ROOT: dict[str, type] = {"welcome": Welcome, "part": Part, "differ": Differ, "lost": Lost}


@dataclass(frozen=True)
class Envelope:
    """What is on each message.

    Attributes:
        boot: Random number that names the epoch together with the epoch's number.
        epoch: Number of the epoch.
        rank: Rank that sends; 0 for rank 0.
    """

    boot: int
    epoch: int
    rank: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch} (boot {self.boot:016x})"


def encode_from_rank(envelope: Envelope, message: FromRank) -> bytes:
    """Encode a message of a rank.

    Raises:
        WireError: a number is out of range.
    """
    return _encode(_pb.FromRank(rank=envelope.rank), _FROM_RANK, envelope, message)


def decode_from_rank(data: bytes) -> tuple[Envelope, FromRank]:
    """Decode a message of a rank; its length was bounded when it was received.

    Raises:
        WireError: it is malformed.
    """
    outer = _pb.FromRank()
    message: FromRank = _decode(outer, _FROM_RANK, data)
    return Envelope(outer.boot, outer.epoch, outer.rank), message


def encode_from_root(envelope: Envelope, message: FromRoot) -> bytes:
    """Encode a message of rank 0.

    Raises:
        WireError: a number is out of range.
    """
    return _encode(_pb.FromRoot(), _FROM_ROOT, envelope, message)


def decode_from_root(data: bytes) -> tuple[Envelope, FromRoot]:
    """Decode a message of rank 0; its length was bounded when it was received.

    Raises:
        WireError: it is malformed.
    """
    outer = _pb.FromRoot()
    message: FromRoot = _decode(outer, _FROM_ROOT, data)
    return Envelope(outer.boot, outer.epoch), message


def _encode(outer: Any, kinds: dict[str, type], envelope: Envelope, value: Any) -> bytes:
    outer.boot, outer.epoch = envelope.boot, envelope.epoch
    inner = getattr(outer, next(name for name, cls in kinds.items() if type(value) is cls))
    inner.SetInParent()
    fill(inner, value)
    data: bytes = outer.SerializeToString()
    return data


def _decode(outer: Any, kinds: dict[str, type], data: bytes) -> Any:
    try:
        outer.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"{outer.DESCRIPTOR.name} of {len(data)} bytes is malformed: {error}") from None
    name = outer.WhichOneof("message")
    if name is None:
        raise WireError(
            f"{outer.DESCRIPTOR.name} of {len(data)} bytes is of no known kind; install the same version of softs-fast "
            "on all ranks"
        )
    return read(kinds[name], getattr(outer, name))
