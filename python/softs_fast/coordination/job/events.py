"""What the machine of the coordinator is told, and what it wants done. Connections are numbers that are never reused."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import FromWorker, Table, ToWorker

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


@dataclass(frozen=True)
class Drain:
    """An administrator has a seat leave at the end of the present step."""

    seat: int
    why: str


@dataclass(frozen=True)
class Evict:
    """An administrator takes a seat away at once."""

    seat: int
    why: str


@dataclass(frozen=True)
class Resize:
    """An administrator changes how many members there are."""

    min_workers: int
    max_workers: int


@dataclass(frozen=True)
class End:
    """An administrator ends the job."""

    why: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Received | Gone | Drain | Evict | Resize | End | Tick

# --- Records: what a coordinator must know again after a restart ---


@dataclass(frozen=True)
class Booted:
    """The job, and the number that names its epochs."""

    job: str
    boot: int


@dataclass(frozen=True)
class Opened:
    """An epoch was opened."""

    table: Table


@dataclass(frozen=True)
class Completed:
    """A checkpoint is complete."""

    epoch: int
    step: int
    path: str


Record = Booted | Opened | Completed

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

    record: Record


@dataclass(frozen=True)
class Log:
    """Tell people."""

    text: str
    is_warning: bool = False


Output = Send | Close | Persist | Log
