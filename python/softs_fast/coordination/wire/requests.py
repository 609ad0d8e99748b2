"""What is asked of a coordinator beside the session of a worker, and its answers. All are values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..job.events import Drain, End, Evict, Resize

#: Of a key-value store.
Operation = Literal["set", "get", "wait", "add", "check", "delete"]

#: What an administrator may ask for.
Action = Evict | Drain | Resize | End


@dataclass(frozen=True)
class KeysRequest:
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

    job: str
    boot: int
    epoch: int
    operation: Operation
    keys: tuple[str, ...]
    value: bytes = b""
    amount: int = 0
    deadline_ms: int = 0


@dataclass(frozen=True)
class KeysReply:
    """The result of an operation.

    Attributes:
        value: Value of the key, for get.
        number: Sum after the addition, for add.
        found: Result of check: whether all keys are there; of delete: whether the key was there.
    """

    value: bytes = b""
    number: int = 0
    found: bool = False


@dataclass(frozen=True)
class AdminReply:
    """What was done, in the words of the coordinator's log."""

    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegisterWorkerRequest:
    """A worker without a stream wants to be a member; again: it waits for the next epoch."""

    worker_id: str
    address: str = ""


@dataclass(frozen=True)
class RegisterWorkerResponse:
    """An epoch is open.

    Attributes:
        rank: Rank of the worker.
        peers: Addresses of all members, in the order of their ranks.
        epoch: Number of the epoch.
    """

    rank: int
    peers: tuple[str, ...]
    epoch: int


@dataclass(frozen=True)
class UnregisterWorkerRequest:
    """A worker without a stream leaves."""

    worker_id: str


@dataclass(frozen=True)
class UnregisterWorkerResponse:
    """It has left; the number is of the last epoch."""

    epoch: int


@dataclass(frozen=True)
class HeartbeatRequest:
    """A worker without a stream is alive."""

    worker_id: str


@dataclass(frozen=True)
class HeartbeatResponse:
    """The state of its epoch.

    Attributes:
        status: OK; FENCED: the epoch is over, and the worker registers again when it has ended its calls.
        epoch: the number of the last epoch.
    """

    status: str
    epoch: int


@dataclass(frozen=True)
class StartCheckpointRequest:
    """A checkpoint begins: the epoch of the training, and where it goes."""

    epoch: int
    path: str


@dataclass(frozen=True)
class StartCheckpointResponse:
    """A checkpoint has begun; the number is of the members' epoch."""

    checkpoint_id: str
    epoch: int


@dataclass(frozen=True)
class EndCheckpointRequest:
    """A worker has written its part."""

    worker_id: str
    epoch: int
    checkpoint_id: str


@dataclass(frozen=True)
class EndCheckpointResponse:
    """It is noted; the number is of the members' epoch."""

    epoch: int


Request = (
    KeysRequest
    | RegisterWorkerRequest
    | UnregisterWorkerRequest
    | HeartbeatRequest
    | StartCheckpointRequest
    | EndCheckpointRequest
)
Reply = (
    KeysReply
    | AdminReply
    | RegisterWorkerResponse
    | UnregisterWorkerResponse
    | HeartbeatResponse
    | StartCheckpointResponse
    | EndCheckpointResponse
)
