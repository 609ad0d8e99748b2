"""What the machine of the coordinator is told, and what it wants done. Connections are numbers that are never reused."""

from __future__ import annotations

from dataclasses import dataclass

from ...records import U32, Record, Tag64
from .messages import Checkpoint, Contract, FromWorker, Reason, Table, Text, ToWorker

# --- Events ---


@dataclass(frozen=True)
class Received:
    """A message of a worker.

    Attributes:
        conn: Number of the connection.
        message: Message of the worker.
        identity: Identity that the connection has proven; None if it proves none.
    """

    conn: int
    message: FromWorker
    identity: str | None = None


@dataclass(frozen=True)
class Gone:
    """A connection has ended, or its peer has not answered for too long."""

    conn: int


class Drain(Record):
    """An administrator has a seat leave at the end of the present step."""

    seat: U32
    reason: Reason


class Evict(Record):
    """An administrator takes a seat away at once."""

    seat: U32
    reason: Reason


class Resize(Record):
    """An administrator changes how many members there are."""

    min_workers: U32
    max_workers: U32


class End(Record):
    """An administrator ends the job."""

    reason: Reason


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Received | Gone | Drain | Evict | Resize | End | Tick

# --- Records: what a coordinator must know again after a restart ---


class Booted(Record):
    """The job, and the number that names its epochs."""

    job: Text
    boot: Tag64


class Agreed(Record):
    """What all workers of the job train, from its first epoch on."""

    contract: Contract


class Completed(Checkpoint):
    """A checkpoint is complete."""


class Ended(Record):
    """The job has ended: what comes after it in the file is another job's, and checkpoints before it are all that stays."""

    reason: Reason


#: A table is an epoch that was opened.
StateRecord = Booted | Table | Completed | Agreed | Ended

# --- Outputs, in the order in which they are to be done ---


@dataclass(frozen=True)
class Send:
    """Send a message."""

    conn: int
    message: ToWorker


@dataclass(frozen=True)
class Close:
    """Close a connection after what was sent on it."""

    conn: int


@dataclass(frozen=True)
class Persist:
    """Write a record durably, before any output after it is done."""

    record: StateRecord


@dataclass(frozen=True)
class Log:
    """Tell people."""

    text: str
    is_warning: bool = False


Output = Send | Close | Persist | Log
