"""What coordinator and workers say to each other. All are values: equal contents are equal messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: Of the messages between coordinator and workers; both sides must have the same.
PROTOCOL = 1

#: Why an epoch ended, or is to end.
Cause = Literal[
    "gone",
    "fault",
    "restarted",
    "dropped",
    "joined",
    "left",
    "drained",
    "evicted",
    "resized",
    "stalled",
    "coordinator",
    "ended",
    "failed",
]

#: Why a worker was refused.
Refusal = Literal["protocol", "job", "identity", "taken", "older", "full", "restarts", "ended", "evicted"]

#: What members do with the step in doubt: apply what they hold, or drop it.
Roll = Literal["forward", "back"]


@dataclass(frozen=True)
class WorkerState:
    """What a worker has, by its own account.

    Attributes:
        boot: Boot, a random number, of the coordinator that opened its last epoch; 0 if it was in none.
        epoch: Number of the last epoch of which it was a member; 0 for none, or if it has no valid weights any more.
        committed: Number of steps that it has applied.
        in_doubt: Whether it holds the reduced gradients of step committed + 1, and does not know whether all have them.
    """

    boot: int = 0
    epoch: int = 0
    committed: int = 0
    in_doubt: bool = False

    @property
    def reach(self) -> int:
        """The step up to which it could go on by itself."""
        return self.committed + self.in_doubt

    @property
    def is_lost(self) -> bool:
        """Whether it was in an epoch, and has no valid weights any more: others may have those of a later step."""
        return self.boot != 0 and self.epoch == 0


# --- From a worker ---


@dataclass(frozen=True)
class Hello:
    """Asks for a seat; the first message of a connection.

    Attributes:
        job: Name of the job.
        worker_id: Name of the worker, the same after a restart.
        incarnation: Random number of its process.
        wanted_seat: Number of the seat that the launcher gave it, if any.
        address: Address at which other members reach it.
        last: State of the worker, by its own account.
        engine_boot: Boot of the epoch of which it has an engine; 0 without an engine.
        engine_epoch: Number of that epoch.
        protocol: Version of the protocol, PROTOCOL.
    """

    job: str
    worker_id: str
    incarnation: int
    wanted_seat: int | None = None
    address: str = ""
    last: WorkerState = field(default_factory=WorkerState)
    engine_boot: int = 0
    engine_epoch: int = 0
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Ready:
    """Waits for a table: it has no engine, and no call is pending.

    Attributes:
        state: State of the worker, by its own account.
        boot: Boot of the newest epoch that it was told of, open or ended; 0 for none.
        epoch: Number of that epoch. A worker that is told of a newer one later says Ready again.
    """

    state: WorkerState
    boot: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class Step:
    """Has begun step `number` of an epoch."""

    epoch: int
    number: int


@dataclass(frozen=True)
class Fault:
    """A step of an epoch failed.

    Attributes:
        epoch: Epoch of the step.
        step: Step that failed.
        accused_rank: Rank that caused it: the own one if this worker has raised, or the one that its engine has lost;
            None if it does not know.
        text: Type and text of the exception.
    """

    epoch: int
    step: int
    accused_rank: int | None
    text: str


@dataclass(frozen=True)
class Leave:
    """Leaves at the end of the present step, for good.

    Attributes:
        why: Reason, as text for the user.
        is_resting: Whether it is in no step and will begin none; it keeps its engine until the epoch has ended,
            because others may need what it has sent for the end of their last step.
    """

    why: str
    is_resting: bool = False


@dataclass(frozen=True)
class CheckpointBegin:
    """Begins to write its part of a checkpoint of a step, in an epoch, at a path that all members name alike."""

    epoch: int
    step: int
    path: str


@dataclass(frozen=True)
class CheckpointEnd:
    """Has written its part, durably."""

    epoch: int
    step: int
    path: str


@dataclass(frozen=True)
class CheckpointDamaged:
    """Was to load the checkpoint of a table, and has found files of it missing, cut or altered."""

    epoch: int
    step: int
    path: str


FromWorker = Hello | Ready | Step | Fault | Leave | CheckpointBegin | CheckpointEnd | CheckpointDamaged

# --- To a worker ---


@dataclass(frozen=True)
class Member:
    """A member of an epoch."""

    rank: int
    seat: int
    worker_id: str
    incarnation: int
    address: str


@dataclass(frozen=True)
class Welcome:
    """A worker is known.

    Attributes:
        boot: Random number of the coordinator; it names epochs together with their number.
        seat: Seat of the worker; None for a spare.
    """

    boot: int
    seat: int | None


@dataclass(frozen=True)
class Table:
    """An epoch is open.

    Attributes:
        boot: Random number of the coordinator that opened the epoch, as in Welcome.
        epoch: Number of the epoch.
        members: Members, in the order of their ranks.
        resume_step: Steps that all have applied once they have done what the table says.
        roll: What members that are in doubt do: "forward", apply the step; "back", drop it.
        survivors: Ranks that were in the epoch before, and hold its state.
        source_rank: Rank from which all but the survivors copy; None: all load `checkpoint`.
        checkpoint: Path of the last complete checkpoint; empty without one.
    """

    boot: int
    epoch: int
    members: tuple[Member, ...]
    resume_step: int
    roll: Roll
    survivors: tuple[int, ...]
    source_rank: int | None
    checkpoint: str = ""


@dataclass(frozen=True)
class Fence:
    """An epoch is over: members end their calls, drop their engine, and say Ready.

    Attributes:
        boot: Random number of the coordinator that opened the epoch, as in Welcome.
        epoch: Number of the epoch that ends.
        cause: Cause of the end, as a code.
        culprit_seat: Seat at which the cause lies, if that is known.
        text: Reason, as text for the user.
        planned: Whether members first end the step in which they are, and agree on it: nothing has failed then.
    """

    boot: int
    epoch: int
    cause: Cause
    culprit_seat: int | None
    text: str
    planned: bool = False


@dataclass(frozen=True)
class Refused:
    """A worker cannot take part; its connection is closed.

    Attributes:
        code: Cause of the refusal, as a code.
        text: Reason, as text for the user.
        held_by: Name of the worker that has what was asked for, if that is the reason.
    """

    code: Refusal
    text: str
    held_by: str = ""


@dataclass(frozen=True)
class Alarm:
    """Seats stand still; nothing was done about it."""

    seats: tuple[int, ...]
    text: str


ToWorker = Welcome | Table | Fence | Refused | Alarm
