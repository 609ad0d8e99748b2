"""What coordinator and workers say to each other. All are values: equal contents are equal messages."""

from __future__ import annotations

from typing import Annotated, Literal

from ...records import CUT, U32, Amount, Count, Record, Tag64, as_number, field, most, shaped, span
from .options import MAX_SEATS, MAX_TEXT

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
Refusal = Literal[
    "protocol",
    "job",
    "identity",
    "taken",
    "older",
    "full",
    "restarts",
    "ended",
    "evicted",
    "contract",
]

#: What members do with the step in doubt: apply what they hold, or drop it.
Roll = Literal["forward", "back"]


#: A name, a path.
Text = Annotated[str, most(MAX_TEXT)]
#: A text for people.
Reason = Annotated[str, most(MAX_TEXT), CUT]
# In ASCII, so that a table of MAX_SEATS members has a bound in bytes.
_printable = shaped("[ -~]*")
WorkerId = Annotated[str, most(256), _printable]
Address = Annotated[str, most(512), _printable]
#: A random number of a process, by which it differs from others of its name.
Incarnation = Annotated[Tag64, as_number("uint64")]
Ranks = Annotated[tuple[U32, ...], most(MAX_SEATS)]


class Term(Record):
    """A fact that is the same on all workers of a job, such as the size of a batch."""

    name: Annotated[str, most(256)]
    value: Annotated[str, most(256)]


#: What a worker trains; terms are compared by their names, in any order.
Contract = Annotated[tuple[Term, ...], most(128)]


class WorkerState(Record):
    """What a worker has, by its own account.

    Attributes:
        boot: Boot, a random number, of the coordinator that opened its last epoch; 0 if it was in none.
        epoch: Number of the last epoch of which it was a member; 0 for none, or if it has no valid weights any more.
        committed: Number of steps that it has applied.
        in_doubt: Whether it holds the reduced gradients of step committed + 1, and does not know whether all have them.
    """

    boot: Tag64 = 0
    epoch: Count = 0
    # Of `reach`, which is one more, messages have 63 bits.
    committed: Annotated[int, span(0, (1 << 63) - 2)] = 0
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


class Hello(Record):
    """Asks for a seat; the first message of a connection.

    Attributes:
        job: Name of the job.
        worker_id: Name of the worker, the same after a restart.
        incarnation: Random number of its process.
        wanted_seat: Number of the seat that the launcher gave it, if any.
        address: Address at which other members reach it.
        last: State of the worker, by its own account.
        protocol: Version of the protocol, PROTOCOL.
        engine_boot: Boot of the epoch of which it has an engine; 0 without an engine.
        engine_epoch: Number of that epoch.
        contract: What the worker trains; the coordinator refuses a worker that trains something else than its job.
        can_follow: Whether the worker can copy a state, and serve its own, while the members of an epoch make steps.
    """

    job: Text
    worker_id: WorkerId
    incarnation: Incarnation
    wanted_seat: U32 | None = None
    address: Address = ""
    last: WorkerState = field(default_factory=WorkerState)
    protocol: U32 = PROTOCOL
    engine_boot: Tag64 = 0
    engine_epoch: Count = 0
    contract: Contract = ()
    can_follow: bool = False


class Ready(Record):
    """Waits for a table: it has no engine, and no call is pending.

    Attributes:
        state: State of the worker, by its own account.
        boot: Boot of the newest epoch that it was told of, open or ended; 0 for none.
        epoch: Number of that epoch. A worker that is told of a newer one later says Ready again.
    """

    state: WorkerState
    boot: Tag64 = 0
    epoch: Count = 0


class Saved(Record):
    """A checkpoint that one worker has written for all.

    Attributes:
        step: Step of its weights.
        age_s: Time since it was on disk, seconds.
        write_s: Time that it took to write it, seconds.
    """

    step: Count
    age_s: Amount
    write_s: Amount


class Report(Record):
    """What a worker that trains on live samples has done since it began.

    Attributes:
        n_samples: Samples that it has trained.
        waiting_s: Time in which it has waited for samples, seconds.
        elapsed_s: Time since it began, seconds.
        lacks_s: Time for which it has waited for the samples that are due now, seconds; 0 if it waits for none.
        saved: Last checkpoint that it has written; None for none.
    """

    n_samples: Count
    waiting_s: Amount
    elapsed_s: Amount
    lacks_s: Amount = 0.0
    saved: Saved | None = None


class Step(Record):
    """Has begun step `number` of an epoch, or waits in it for samples.

    Attributes:
        epoch: Number of the epoch.
        number: Number of the step.
        report: Report of the worker; None if it trains on no live samples.
    """

    epoch: Count
    number: Count
    report: Report | None = None


class Fault(Record):
    """A step of an epoch failed.

    Attributes:
        epoch: Epoch of the step.
        step: Step that failed.
        accused_rank: Rank that caused it: the own one if this worker has raised, or the one that its engine has lost;
            None if it does not know.
        text: Type and text of the exception.
    """

    epoch: Count
    step: Count
    accused_rank: U32 | None
    text: Reason


class Leave(Record):
    """Leaves at the end of the present step, for good.

    Attributes:
        reason: Reason, as text for the user.
        is_resting: Whether it is in no step and will begin none; it keeps its engine until the epoch has ended,
            because others may need what it has sent for the end of their last step.
    """

    reason: Reason
    is_resting: bool = False


class Checkpoint(Record):
    """A checkpoint of a step, in an epoch, at a path that all members name alike."""

    epoch: Count
    step: Count
    path: Text


class CheckpointBegin(Checkpoint):
    """Begins to write its part."""


class CheckpointEnd(Checkpoint):
    """Has written its part, durably."""


class CheckpointDamaged(Checkpoint):
    """Was to load the checkpoint of a table, and has found files of it missing, cut or altered."""


class Followed(Record):
    """Has the state of an open epoch, of which it is no member.

    Attributes:
        epoch: Number of the epoch.
        number: Number of the copy, as in Follow.
        step: Last step that it has applied.
        backlog: Later steps that the source had committed when it had sent this one.
    """

    epoch: Count
    number: Count
    step: Count
    backlog: Count


class Unfollowed(Record):
    """A copy beside the steps has failed, by the account of its source or of a follower.

    Attributes:
        epoch: Number of the epoch.
        number: Number of the copy, as in Follow.
        text: Type and text of the exception.
    """

    epoch: Count
    number: Count
    text: Reason


FromWorker = (
    Hello
    | Ready
    | Step
    | Fault
    | Leave
    | CheckpointBegin
    | CheckpointEnd
    | CheckpointDamaged
    | Followed
    | Unfollowed
)

# --- To a worker ---


class Member(Record):
    """A member of an epoch."""

    rank: U32
    seat: U32
    worker_id: WorkerId
    incarnation: Incarnation
    address: Address


class Welcome(Record):
    """A worker is known.

    Attributes:
        boot: Random number of the coordinator; it names epochs together with their number.
        seat: Seat of the worker; None for a spare.
    """

    boot: Tag64
    seat: U32 | None


class Table(Record):
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
        followers: Ranks that have applied `resume_step` without being members; all that lack the state, or none. They
            copy only what steps do not change by gradients alone, and are compared with the source before the first
            step is committed.
    """

    boot: Tag64
    epoch: Count
    members: Annotated[tuple[Member, ...], most(MAX_SEATS)]
    resume_step: Count
    roll: Roll
    survivors: Ranks
    source_rank: U32 | None
    checkpoint: Text = ""
    followers: Ranks = ()

    def __post_init__(self) -> None:
        n = len(self.members)
        ranks, seats = ([getattr(one, name) for one in self.members] for name in ("rank", "seat"))
        fits = (
            n > 0
            and ranks == list(range(n))
            and all(low < high for low, high in zip([-1, *seats], [*seats, MAX_SEATS], strict=True))
            and all(rank < n for rank in (*self.survivors, *self.followers))
            and (self.source_rank is None or self.source_rank < n)
        )
        if not fits:
            raise ValueError(
                f"the table of epoch {self.epoch} contradicts itself: {n} members, ranks {ranks[:8]}, seats {seats[:8]}"
            )


class Fence(Record):
    """An epoch is over: members end their calls, drop their engine, and say Ready.

    Attributes:
        boot: Random number of the coordinator that opened the epoch, as in Welcome.
        epoch: Number of the epoch that ends.
        cause: Cause of the end, as a code.
        culprit_seat: Seat at which the cause lies, if that is known.
        text: Reason, as text for the user.
        planned: Whether members first end the step in which they are, and agree on it: nothing has failed then.
    """

    boot: Tag64
    epoch: Count
    cause: Cause
    culprit_seat: U32 | None
    text: Reason
    planned: bool = False


class Refused(Record):
    """A worker cannot take part; its connection is closed.

    Attributes:
        code: Cause of the refusal, as a code.
        text: Reason, as text for the user.
        held_by: Name of the worker that has what was asked for, if that is the reason.
    """

    code: Refusal
    text: Reason
    held_by: WorkerId = ""


class Alarm(Record):
    """Seats stand still; nothing was done about it."""

    seats: Annotated[tuple[U32, ...], most(2 * MAX_SEATS)]
    text: Reason


#: Text in front of the keys of all copies.
FOLLOW_KEYS = "follow/"


class Follow(Record):
    """Workers copy the state of a member while its epoch is open: a snapshot, then the gradients of each step.

    Attributes:
        table: The source and its followers, in the order of their ranks in an engine of their own; of the open epoch.
        number: Number of the copy, which no other coordinator of the job has used; a later copy replaces those before.
    """

    table: Table
    number: Count

    @property
    def key_prefix(self) -> str:
        """The text in front of the keys by which these workers find each other."""
        return f"{FOLLOW_KEYS}{self.number}/"


ToWorker = Welcome | Table | Fence | Refused | Alarm | Follow
