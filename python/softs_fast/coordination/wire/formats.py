"""How the messages of a coordinator are written, and how long they may be; coordinator.proto says so to other languages."""

from __future__ import annotations

from typing import Any

from ...records import Proto, schema
from ..job.events import StateRecord
from ..job.messages import Cause, FromWorker, Refusal, Roll, ToWorker
from ..job.state import Phase
from ..job.status import Status
from .requests import MAX_VALUE_BYTES, REPLIES, Action, AdminReply, KeysRequest, Operation

__all__ = [
    "ACTIONS",
    "FORMATS",
    "FROM_WORKER",
    "MAX_KEYS_BYTES",
    "MAX_STATUS_BYTES",
    "MAX_TABLE_BYTES",
    "RECORDS",
    "STATUS",
    "TO_WORKER",
    "schema_of_messages",
]

#: Room for MAX_SEATS members with the longest names and addresses.
MAX_TABLE_BYTES = 4 << 20
#: Seats and spares with their texts.
MAX_STATUS_BYTES = 16 << 20
#: The value of a key, and the names of the keys.
MAX_KEYS_BYTES = MAX_VALUE_BYTES + (64 << 10)
_MAX_SESSION_BYTES = 64 << 10
_MAX_REQUEST_BYTES = 32 << 10

FROM_WORKER: Proto[FromWorker] = Proto(FromWorker, most_bytes=_MAX_SESSION_BYTES, what="FromWorker")
TO_WORKER: Proto[ToWorker] = Proto(ToWorker, most_bytes=MAX_TABLE_BYTES, what="ToWorker")
ACTIONS: Proto[Action] = Proto(Action, most_bytes=_MAX_REQUEST_BYTES, what="AdminRequest")
RECORDS: Proto[StateRecord] = Proto(StateRecord, most_bytes=MAX_TABLE_BYTES, what="StateRecord")
STATUS: Proto[Status] = Proto(Status, most_bytes=MAX_STATUS_BYTES, what="StatusReply")

#: Formats of the other requests and answers, by class.
FORMATS: dict[Any, Proto[Any]] = {
    kind: Proto(kind, most_bytes=most_bytes, what=kind.__name__)
    for kind, most_bytes in (
        (KeysRequest, MAX_KEYS_BYTES),
        *((one, _MAX_REQUEST_BYTES) for one in REPLIES if one is not KeysRequest),
        (AdminReply, MAX_TABLE_BYTES),
        *((one, MAX_TABLE_BYTES) for one in REPLIES.values()),
    )
}


def schema_of_messages() -> str:
    """Return the messages of coordinator.proto."""
    enums = {"Cause": Cause, "Refusal": Refusal, "Roll": Roll, "Operation": Operation, "Phase": Phase}
    return schema([FROM_WORKER, TO_WORKER, ACTIONS, STATUS, *FORMATS.values()], enums)
