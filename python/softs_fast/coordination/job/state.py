"""What the machine of a coordinator knows, and what it has to say."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from .admission import Gate
from .checkpoints import Checkpoints
from .cooldown import Cooldown
from .events import Close, Log, Output, Send
from .messages import Cause, Fence, Follow, Hello, Member, Refused, Table, ToWorker
from .options import JobOptions
from .progress import Progress
from .rates import Rates
from .seats import Seats, Worker

#: forming: no epoch was open yet; fenced: one is over, the next one not open.
Phase = Literal["forming", "open", "fenced", "ended", "failed"]

# Fences that the status shows.
_MOST_SHOWN = 32
# Boots of one training that are remembered.
_MOST_BOOTS = 64


@dataclass(frozen=True)
class Newcomer:
    """A process that waits until a connection of another one has ended, which has its name or its seat.

    Attributes:
        hello: First message of the connection.
        identity: Identity that the connection has proven; None if it proves none.
        until_s: Time at which it is refused.
    """

    hello: Hello
    identity: str | None
    until_s: float


@dataclass
class Following:
    """A copy of the state of the open epoch to workers that wait for it to end.

    Attributes:
        follow: Source and followers, as they were told.
        since_s: Time at which they were told.
        steps: Last step that a follower has applied, by seat; without one that has not received the state yet.
        complete_s: Time at which the last follower had received the state; None before.
        close: Seats of followers that were one step behind the members at most.
        has_failed: Whether it has failed: the followers copy when the epoch has ended.
    """

    follow: Follow
    since_s: float
    steps: dict[int, int] = field(default_factory=dict)
    complete_s: float | None = None
    close: set[int] = field(default_factory=set)
    has_failed: bool = False


@dataclass
class State:
    """Of a job.

    Attributes:
        options: Options of the job; an administrator may change the sizes.
        boot: Random number that names the epochs that are opened from now on.
        now_s: Time of the last event.
        since_s: Time at which the phase began.
        seats: Seats and their workers.
        phase: Phase of the job.
        reason: Reason for the end of the job, as text for the user.
        table: Table of the last epoch; None before the first one.
        members: Members of the last epoch by seat: the processes that had the seats then.
        left: Seats of members that have left.
        fence: Fence of the last epoch, if it has ended or ends after this step.
        fence_since_s: Time at which the fence was planned.
        enough_since_s: Time since which there are enough workers for the first epoch.
        joined_since_s: Time since which there are more workers than the open epoch has members.
        following: Copy of the state to workers that are to be admitted; None without one.
        n_follows: Number of such copies so far.
        has_copied_again: Whether such a copy of the open epoch was dropped, so that another one has begun.
        boots: Boots of this training: those under which its epochs were opened, the latest last.
        newcomers: Processes that wait for the end of a connection, by the number of their own connection.
    """

    options: JobOptions
    boot: int
    now_s: float
    since_s: float
    seats: Seats
    phase: Phase = "forming"
    reason: str = ""
    table: Table | None = None
    members: dict[int, Member] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    fence: Fence | None = None
    fence_since_s: float = 0.0
    enough_since_s: float | None = None
    joined_since_s: float | None = None
    following: Following | None = None
    n_follows: int = 0
    has_copied_again: bool = False
    boots: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_BOOTS))
    newcomers: dict[int, Newcomer] = field(default_factory=dict)
    gate: Gate = field(default_factory=Gate)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    cooldown: Cooldown = field(default_factory=Cooldown)
    progress: Progress = field(default_factory=Progress)
    rates: Rates = field(default_factory=Rates)
    fences: deque[Fence] = field(default_factory=lambda: deque(maxlen=_MOST_SHOWN))
    n_fences: Counter[Cause] = field(default_factory=Counter)
    table_s: float = 0.0
    outputs: list[Output] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        """The number of the last epoch; 0 if there was none."""
        return 0 if self.table is None else self.table.epoch

    @property
    def epoch_id(self) -> tuple[int, int] | None:
        """Boot and number of the last epoch; None if there was none."""
        return None if self.table is None else (self.table.boot, self.table.epoch)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.phase in ("ended", "failed")

    def is_member(self, worker: Worker) -> bool:
        """Return whether a process is, or was, in the last epoch."""
        member = self.members.get(worker.number)
        return member is not None and worker.is_process(member)

    def name_of(self, worker: Worker) -> str:
        """Return how texts that reach the members name a worker: by rank, seat and worker id."""
        member = self.members.get(worker.number)
        if member is None or not self.is_member(worker):
            return worker.name
        return f"rank {member.rank}, {worker.name}"

    def warn_if_foreign(self, worker: Worker) -> None:
        """Tell people of a worker that comes from another training, and is given the weights of this one."""
        ready = worker.ready
        if ready is not None and ready.epoch and ready.boot not in self.boots:
            self.log(
                f"{worker.name} comes from another training, with {ready.committed} steps of its epoch {ready.epoch}; it "
                "takes over the weights of this one",
                is_warning=True,
            )

    def adopt(self, boots: Iterable[int]) -> list[int]:
        """Count epochs of boots to this training; return those that did not count before."""
        new = [boot for boot in dict.fromkeys(boots) if boot not in self.boots]
        self.boots.extend(new)
        return new

    def connected_members(self) -> Iterator[Worker]:
        """Iterate over the members that have a connection, by seat."""
        return (worker for worker in self.seats if worker.conn is not None and self.is_member(worker))

    def enter(self, table: Table) -> None:
        """Begin an epoch."""
        self.table = table
        self.members = {member.seat: member for member in table.members}
        self.left = set()
        self.fence = None
        self.enough_since_s = self.joined_since_s = self.following = None
        self.has_copied_again = False
        self.progress = Progress()
        self.rates.begin()
        self.phase, self.reason, self.since_s = "open", "", self.now_s

    def tell(self, worker: Worker, message: ToWorker) -> None:
        """Send a message to a worker, if it is connected."""
        if worker.conn is None:
            return
        if isinstance(message, (Table, Fence)):
            worker.told = (message.boot, message.epoch)
        self.outputs.append(Send(worker.conn, message))

    def refuse(self, conn: int, refused: Refused) -> None:
        """Send why a worker cannot take part, and close its connection."""
        self.outputs += [Send(conn, refused), Close(conn)]

    def log(self, text: str, *, is_warning: bool = False) -> None:
        """Tell people."""
        self.outputs.append(Log(text, is_warning))
