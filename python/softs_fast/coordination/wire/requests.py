"""What is asked of a coordinator beside the session of a worker, and its answers. All are values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from ...records import U32, Count, Record, Tag64, as_number, most, span
from ..job.events import Drain, End, Evict, Resize
from ..job.messages import Address, Reason, Text, WorkerId
from ..job.options import MAX_SEATS

#: Bytes of the value of a key, at most.
MAX_VALUE_BYTES = 64 << 10
_Value = Annotated[bytes, most(MAX_VALUE_BYTES)]
_Sum = Annotated[int, span(-(1 << 63), (1 << 63) - 1), as_number("sint64")]
_TrainingEpoch = Annotated[Count, as_number("int64")]

#: Of a key-value store.
Operation = Literal["set", "get", "wait", "add", "check", "delete"]

#: What an administrator may ask for.
Action = Evict | Drain | Resize | End


class KeysRequest(Record):
    """An operation on the keys of an epoch.

    Attributes:
        job: Name of the job.
        boot: Boot that names the epoch together with its number.
        epoch: Number of the epoch.
        operation: Operation on the keys.
        keys: Keys of the operation; one, but for wait and check.
        value: Value to be set, for set.
        amount: Number to be added, for add.
        deadline_ms: How long get and wait wait for keys that are not there, milliseconds.
    """

    job: Text
    boot: Tag64
    epoch: Count
    operation: Operation
    keys: Annotated[tuple[Annotated[str, most(1024)], ...], most(256, least=1)]
    value: _Value = b""
    amount: _Sum = 0
    deadline_ms: U32 = 0

    def __post_init__(self) -> None:
        if len(self.keys) > 1 and self.operation not in ("wait", "check"):
            raise ValueError(f"{self.operation} of {len(self.keys)} keys, expected 1")


class KeysReply(Record):
    """The result of an operation.

    Attributes:
        value: Value of the key, for get.
        number: _Sum after the addition, for add.
        found: Result of check: whether all keys are there; of delete: whether the key was there.
    """

    value: _Value = b""
    number: _Sum = 0
    found: bool = False


class AdminReply(Record):
    """What was done, in the words of the coordinator's log."""

    log: Annotated[tuple[Reason, ...], most(64)] = ()


class RegisterWorkerRequest(Record):
    """A worker without a stream wants to be a member; again: it waits for the next epoch."""

    worker_id: WorkerId
    address: Address = ""


class RegisterWorkerResponse(Record):
    """An epoch is open.

    Attributes:
        rank: Rank of the worker.
        peers: Addresses of all members, in the order of their ranks.
        epoch: Number of the epoch.
    """

    rank: Annotated[int, span(0, MAX_SEATS), as_number("int32")]
    peers: Annotated[tuple[Address, ...], most(MAX_SEATS)]
    epoch: Count


class UnregisterWorkerRequest(Record):
    """A worker without a stream leaves."""

    worker_id: WorkerId


class UnregisterWorkerResponse(Record):
    """It has left; the number is of the last epoch."""

    epoch: Count


class HeartbeatRequest(Record):
    """A worker without a stream is alive."""

    worker_id: WorkerId


class HeartbeatResponse(Record):
    """The state of its epoch.

    Attributes:
        status: OK; FENCED: the epoch is over, and the worker registers again when it has ended its calls.
        epoch: the number of the last epoch.
    """

    status: Text
    epoch: Count


class StartCheckpointRequest(Record):
    """A checkpoint begins: the epoch of the training, and where it goes."""

    epoch: _TrainingEpoch
    path: Text


class StartCheckpointResponse(Record):
    """A checkpoint has begun; the number is of the members' epoch."""

    checkpoint_id: Text
    epoch: Count


class EndCheckpointRequest(Record):
    """A worker has written its part."""

    worker_id: WorkerId
    epoch: _TrainingEpoch
    checkpoint_id: Text


class EndCheckpointResponse(Record):
    """It is noted; the number is of the members' epoch."""

    epoch: Count


Request = (
    KeysRequest
    | RegisterWorkerRequest
    | UnregisterWorkerRequest
    | HeartbeatRequest
    | StartCheckpointRequest
    | EndCheckpointRequest
)

# --- Methods, by their names on the wire ---

SERVICE = "softs.v1.Coordinator"
SESSION, STATUS, WATCH, ADMIN = (f"/{SERVICE}/{name}" for name in ("Session", "Status", "Watch", "Admin"))

#: What answers which request.
REPLIES: dict[type[Request], type[Any]] = {
    KeysRequest: KeysReply,
    RegisterWorkerRequest: RegisterWorkerResponse,
    UnregisterWorkerRequest: UnregisterWorkerResponse,
    HeartbeatRequest: HeartbeatResponse,
    StartCheckpointRequest: StartCheckpointResponse,
    EndCheckpointRequest: EndCheckpointResponse,
}


def method_of(request: type[Request]) -> str:
    """Return the full name of the method that takes a request."""
    return f"/{SERVICE}/{request.__name__.removesuffix('Request')}"
