"""Messages to bytes and back. Bytes come from any peer: all limits are checked before a message is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError

from ...errors import WireError
from ..job import messages as m
from ..job.events import Booted, Completed, Drain, End, Evict, Opened, Record, Resize
from ..job.options import MAX_SEATS
from ..job.state import Phase
from ..job.status import SeatStatus, Status
from .convert import fill, pb, read
from .limits import (
    MAX_KEYS_BYTES,
    MAX_REQUEST_BYTES,
    MAX_SESSION_BYTES,
    MAX_STATUS_BYTES,
    MAX_TABLE_BYTES,
    MAX_VALUE_BYTES,
)
from .requests import Action, KeysRequest, Reply, Request

__all__ = [
    "decode_action",
    "decode_from_worker",
    "decode_record",
    "decode_reply",
    "decode_request",
    "decode_status",
    "decode_to_worker",
    "encode_action",
    "encode_from_worker",
    "encode_record",
    "encode_reply",
    "encode_request",
    "encode_status",
    "encode_to_worker",
]

_T = TypeVar("_T")

_FROM_WORKER: dict[str, type] = {
    "hello": m.Hello,
    "ready": m.Ready,
    "step": m.Step,
    "fault": m.Fault,
    "leave": m.Leave,
    "checkpoint_begin": m.CheckpointBegin,
    "checkpoint_end": m.CheckpointEnd,
    "checkpoint_damaged": m.CheckpointDamaged,
}
_TO_WORKER: dict[str, type] = {
    "welcome": m.Welcome,
    "table": m.Table,
    "fence": m.Fence,
    "refused": m.Refused,
    "alarm": m.Alarm,
}
_ACTIONS: dict[str, type] = {"evict": Evict, "drain": Drain, "resize": Resize, "end": End}
_RECORDS: dict[str, type] = {"booted": Booted, "opened": m.Table, "completed": Completed}


def encode_from_worker(message: m.FromWorker) -> bytes:
    """Encode a message of a worker; reasons that are too long are cut.

    Raises:
        WireError: another part is too long, or a number out of range.
    """
    return _bounded(_encode_one(pb.FromWorker(), _FROM_WORKER, message), MAX_SESSION_BYTES)


def decode_from_worker(data: bytes) -> m.FromWorker:
    """Decode a message of a worker.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    message: m.FromWorker = _decode_one(pb.FromWorker(), _FROM_WORKER, _bounded(data, MAX_SESSION_BYTES))
    return message


def encode_to_worker(message: m.ToWorker) -> bytes:
    """Encode a message to a worker; reasons that are too long are cut.

    Raises:
        WireError: another part is too long, or a number out of range.
    """
    most = MAX_TABLE_BYTES if isinstance(message, m.Table) else MAX_SESSION_BYTES
    return _bounded(_encode_one(pb.ToWorker(), _TO_WORKER, message), most)


def decode_to_worker(data: bytes) -> m.ToWorker:
    """Decode a message to a worker.

    Raises:
        WireError: it is malformed, passes a limit, or is a table that contradicts itself.
    """
    message: m.ToWorker = _decode_one(pb.ToWorker(), _TO_WORKER, _bounded(data, MAX_TABLE_BYTES))
    if isinstance(message, m.Table):
        _check_table(message)
    else:
        _bounded(data, MAX_SESSION_BYTES)
    return message


def encode_action(action: Action) -> bytes:
    """Encode a request of an administrator.

    Raises:
        WireError: a part is too long, or a number out of range.
    """
    return _encode_one(pb.AdminRequest(), _ACTIONS, action)


def decode_action(data: bytes) -> Action:
    """Decode a request of an administrator.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    action: Action = _decode_one(pb.AdminRequest(), _ACTIONS, _bounded(data, 2 * MAX_REQUEST_BYTES))
    return action


def encode_request(request: Request) -> bytes:
    """Encode another request.

    Raises:
        WireError: a part is too long, or a number out of range.
    """
    if isinstance(request, KeysRequest):
        _check_value(request.value)
    return _encode(request)


def decode_request(cls: type[_T], data: bytes) -> _T:
    """Decode another request, of a class of `requests`.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    request = _decode(cls, _bounded(data, MAX_KEYS_BYTES if cls is KeysRequest else MAX_REQUEST_BYTES))
    if isinstance(request, KeysRequest):
        _check_value(request.value)
        one = request.operation not in ("wait", "check")
        if len(request.keys) != 1 if one else not request.keys:
            raise WireError(
                f"{request.operation} of {len(request.keys)} keys; need {'1' if one else '1 or more'}"
            )
    return request


def encode_reply(reply: Reply) -> bytes:
    """Encode the answer to a request, or to an administrator."""
    return _encode(reply)


def decode_reply(cls: type[_T], data: bytes) -> _T:
    """Decode an answer, of a class of `requests`.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    return _decode(cls, _bounded(data, MAX_TABLE_BYTES))


def encode_record(record: Record) -> bytes:
    """Encode a record of a state file."""
    return _encode_one(pb.Record(), _RECORDS, record.table if isinstance(record, Opened) else record)


def decode_record(data: bytes) -> Record:
    """Decode a record of a state file.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    record = _decode_one(pb.Record(), _RECORDS, _bounded(data, MAX_TABLE_BYTES))
    if isinstance(record, m.Table):
        _check_table(record)
        return Opened(record)
    known: Record = record
    return known


@dataclass(frozen=True)
class _Count:
    cause: m.Cause
    number: int


@dataclass(frozen=True)
class _StatusReply:
    """A Status, with fences by cause as messages can have them."""

    name: str
    phase: Phase
    reason: str
    since_s: float
    boot: int
    epoch: int
    size: int
    seats: tuple[SeatStatus, ...]
    spread: int
    fences: tuple[m.Fence, ...]
    table_s: float
    checkpoint: Completed | None


def encode_status(status: Status) -> bytes:
    """Encode a status.

    Raises:
        WireError: a part is too long, or a number out of range.
    """
    message = pb.StatusReply()
    plain = {name: getattr(status, name) for name in _StatusReply.__dataclass_fields__}
    fill(message, _StatusReply(**plain))
    for cause, number in sorted(status.n_fences.items()):
        fill(message.n_fences.add(), _Count(cast(m.Cause, cause), number))
    return _bounded(message.SerializeToString(), MAX_STATUS_BYTES)


def decode_status(data: bytes) -> Status:
    """Decode a status.

    Raises:
        WireError: it is malformed, or passes a limit.
    """
    message = _parse(pb.StatusReply(), _bounded(data, MAX_STATUS_BYTES))
    counts = [read(_Count, count) for count in message.n_fences[:64]]
    plain = read(_StatusReply, message)
    return Status(**vars(plain), n_fences={count.cause: count.number for count in counts})


def _encode(value: Any) -> bytes:
    message = getattr(pb, type(value).__name__)()
    fill(message, value)
    data: bytes = message.SerializeToString()
    return data


def _decode(cls: type[_T], data: bytes) -> _T:
    return read(cls, _parse(getattr(pb, cls.__name__)(), data))


def _encode_one(outer: Any, kinds: dict[str, type], value: Any) -> bytes:
    """Encode one of the kinds of a message."""
    name = next(name for name, cls in kinds.items() if type(value) is cls)
    inner = getattr(outer, name)
    inner.SetInParent()
    fill(inner, value)
    data: bytes = outer.SerializeToString()
    return data


def _decode_one(outer: Any, kinds: dict[str, type], data: bytes) -> Any:
    _parse(outer, data)
    (choice,) = outer.DESCRIPTOR.oneofs
    name = outer.WhichOneof(choice.name)
    if name is None:
        raise WireError(
            f"{outer.DESCRIPTOR.name} of {len(data)} bytes is of no known kind; install the same version of softs-fast "
            "on both sides"
        )
    return read(kinds[name], getattr(outer, name))


def _parse(message: Any, data: bytes) -> Any:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"{message.DESCRIPTOR.name} of {len(data)} bytes is malformed: {error}") from None
    return message


def _bounded(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise WireError(f"a message has {len(data)} bytes; {most} at most")
    return data


def _check_value(value: bytes) -> None:
    if len(value) > MAX_VALUE_BYTES:
        raise WireError(f"the value of a key has {len(value)} bytes; {MAX_VALUE_BYTES} at most")


def _check_table(table: m.Table) -> None:
    n = len(table.members)
    ranks, seats = ([getattr(member, name) for member in table.members] for name in ("rank", "seat"))
    fits = (
        n > 0
        and ranks == list(range(n))
        and all(low < high for low, high in zip([-1, *seats], [*seats, MAX_SEATS], strict=True))
        and all(rank < n for rank in table.survivors)
        and (table.source_rank is None or table.source_rank < n)
    )
    if not fits:
        raise WireError(
            f"the table of epoch {table.epoch} contradicts itself: {n} members, ranks {ranks[:8]}, seats {seats[:8]}"
        )
