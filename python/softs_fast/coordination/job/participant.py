"""A worker of a job: what it says to the coordinator, and what its engine has to do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from ...errors import ConfigError, WireError
from ...records import checked, replace
from .messages import (
    Alarm,
    CheckpointBegin,
    CheckpointDamaged,
    CheckpointEnd,
    Fault,
    Fence,
    Follow,
    Followed,
    FromWorker,
    Hello,
    Leave,
    Ready,
    Refused,
    Report,
    Step,
    Table,
    ToWorker,
    Unfollowed,
    Welcome,
    WorkerState,
)
from .options import MAX_TEXT

#: What a worker does with its weights before the first step of an epoch: nothing; apply the step that it has reduced;
#: copy those of the source; load the checkpoint.
Duty = Literal["keep", "apply", "copy", "load"]

# --- Actions, in the order in which they are to be done ---


@dataclass(frozen=True)
class Say:
    """Send a message to the coordinator."""

    message: FromWorker


@dataclass(frozen=True)
class Build:
    """Build an engine for the members of a table, do the duty, then call `prepared`; after `apply`, also `applied`.

    With the duty `copy` or `load`, and as the source, a worker takes part in what brings weights to others.
    """

    table: Table
    rank: int
    duty: Duty


@dataclass(frozen=True)
class Copy:
    """Take part in a copy beside steps, in an engine beside that of the epoch; call `unfollowed` if it fails.

    The source sends its state, and each step after it, until its epoch ends. A follower applies them, and calls `followed`
    after each; it ends at once if it is to build an engine. Both end when they are to take part in another copy.
    """

    follow: Follow
    rank: int


@dataclass(frozen=True)
class EndEngine:
    """End all calls of the engine, drop it, then call `ended`."""

    fence: Fence


@dataclass(frozen=True)
class Warn:
    """Tell people."""

    text: str


@dataclass(frozen=True)
class GiveUp:
    """The coordinator has refused this worker."""

    refused: Refused


Action = Say | Build | Copy | EndEngine | Warn | GiveUp

#: away: not welcome yet; idle: waits for a table; building: prepares for the steps of an epoch; member; ending: its
#: epoch is over, and its engine has calls yet; over: refused.
Phase = Literal["away", "idle", "building", "member", "ending", "over"]


# Ends of an epoch that are no failure.
_ORDERLY = ("joined", "left", "drained", "resized", "ended")
# Epochs that a worker remembers to have been in.
_MOST_ENDED = 1024


def state_after(table: Table, rank: int) -> WorkerState:
    """Return what a member has once it has done what a table says.

    The weights of a follower count only when they were compared with those of the source.
    """
    return WorkerState(table.boot, 0 if rank in table.followers else table.epoch, table.resume_step)


class Participant:
    """The machine of a worker: AWAY -> IDLE -> BUILDING -> MEMBER -> ENDING -> IDLE ...

    A step is: `begin`; reduce the gradients; `reduced`; a barrier of the engine, which tells each member whether one of
    them has `wants_end`; `passed`; apply the gradients. What was reduced is kept until `passed`, or until a table says
    what becomes of it.

    Args:
        hello: the first message; `last` is what the worker has: after a restart from a checkpoint, its step.

    Raises:
        ConfigError: a name, an address or a number is out of its bounds.
    """

    def __init__(self, hello: Hello) -> None:
        try:
            self._hello = checked(hello)
        except WireError as error:
            raise ConfigError(f"worker cannot say what it is: {error}") from None
        self.state = hello.last
        self.phase: Phase = "away"
        self.table: Table | None = None
        self.rank: int | None = None
        # How the epoch of the table has ended in the words of the coordinator; None if it has not said so.
        self.over: Fence | None = None
        self.seat: int | None = None
        # Of the epoch, once it is to end after this step.
        self._planned: Fence | None = None
        # The last copy beside steps in which this worker takes part.
        self._follow: Follow | None = None
        #: As a follower, the last step that it has applied; None without one.
        self.followed_step: int | None = None
        self._heard = (0, 0)
        self._ended: deque[tuple[int, int]] = deque(maxlen=_MOST_ENDED)
        self._is_connected = False
        self._left: Leave | None = None
        # Of the epoch of the table, until the coordinator has said how that ended: it may be away now.
        self._fault: Fault | None = None
        self._is_stepping = False

    @property
    def wants_end(self) -> bool:
        """Whether the epoch is to end after this step; members tell each other in the barrier."""
        return self._planned is not None

    @property
    def awaits_fence(self) -> bool:
        """Whether its epoch has failed, and the coordinator, which is connected, has not yet said how it ended."""
        return self._is_connected and self.phase in ("ending", "idle") and self.over is None

    @property
    def is_resting(self) -> bool:
        """Whether it leaves, and begins no step any more."""
        return self._left is not None and self._left.is_resting

    # --- The connection ---

    def connected(self) -> Hello:
        """A connection is there; return its first message."""
        self._is_connected = True
        engine = self._epoch_id if self.phase in ("building", "member", "ending") else (0, 0)
        return replace(self._hello, last=self.state, engine_boot=engine[0], engine_epoch=engine[1])

    def disconnected(self) -> list[Action]:
        """The connection has ended; the engine goes on."""
        self._is_connected = False
        return []

    def receive(self, message: ToWorker) -> list[Action]:
        """Take a message of the coordinator."""
        match message:
            case Welcome():
                self.seat = message.seat
                if self.phase == "away":
                    self.phase = "idle"
                again = [one for one in (self._fault, self._left) if one is not None]
                return [*(said for one in again for said in self._say(one)), *self._ready_if_idle()]
            case Table():
                return self._take(message)
            case Fence():
                return self._fenced(message)
            case Alarm():
                return [Warn(message.text)]
            case Follow():
                return self._begin_copy(message)
            case Refused():
                return self._refused(message)

    # --- The engine ---

    def applied(self) -> None:
        """The duty `apply` is done: that must be known even if the epoch ends before `prepared`."""
        self.state = WorkerState(self.state.boot, self.state.epoch, self.state.reach)

    def prepared(self) -> None:
        """The engine of the table is there, and the weights are of its `resume_step`."""
        if self.phase == "building" and self.table is not None:
            self.phase = "member"
            assert self.rank is not None
            self.state = state_after(self.table, self.rank)
            self.followed_step = None

    def ended(self) -> list[Action]:
        """The engine is gone, and none of its calls is pending."""
        self._ended.append(self._epoch_id)
        self.phase = "idle" if self.phase != "over" else "over"
        self._planned, self._is_stepping = None, False
        if self.state.is_lost:
            # Its steps count no more than its weights.
            self.state = WorkerState(self.state.boot)
        return self._ready_if_idle()

    def fail(self, text: str, accused_rank: int | None = None) -> list[Action]:
        """A step has failed.

        Args:
            text: Type and text of the exception; cut after 4,096 characters.
            accused_rank: Rank that caused it, this worker's own one included; None if that is not known.
        """
        if self.phase not in ("building", "member") or self.table is None:
            return []
        self.phase = "ending"
        fault = Fault(self.table.epoch, self.state.committed + 1, accused_rank, text[:MAX_TEXT])
        self._fault = fault
        fence = Fence(self.table.boot, self.table.epoch, "fault", None, text)
        return [*self._say(fault), EndEngine(fence)]

    # --- Steps ---

    def begin(self, report: Report | None = None) -> list[Action]:
        """Begin the next step.

        Args:
            report: Report of this worker, if it trains on live samples.

        Raises:
            ConfigError: the worker is in no epoch, or has left.
        """
        if self.phase != "member" or self.table is None:
            raise ConfigError(f"a step needs an open epoch; the worker is {self.phase}")
        if self.is_resting:
            raise ConfigError("the worker leaves the job, and begins no step")
        self._is_stepping = True
        return self._say(Step(self.table.epoch, self.state.committed + 1, report))

    def report(self, report: Report) -> list[Action]:
        """Report again in the step that was begun."""
        if self.phase != "member" or self.table is None or not self._is_stepping:
            return []
        return self._say(Step(self.table.epoch, self.state.committed + 1, report))

    def verified(self) -> None:
        """The weights of all followers are those of the source."""
        if self.phase == "member" and self.table is not None:
            self.state = replace(self.state, epoch=self.table.epoch)

    def reduced(self) -> None:
        """The gradients of the step are reduced; whether all members have them is not known."""
        if self.phase == "member":
            self.state = replace(self.state, in_doubt=True)

    def passed(self, *, is_last: bool) -> list[Action]:
        """The barrier has been passed, so all members have the gradients: the caller applies them.

        Args:
            is_last: whether a member wants the epoch to end; the barrier tells all the same.
        """
        if self.phase != "member":
            return []
        state = self.state
        self.state = WorkerState(state.boot, state.epoch, state.committed + 1)
        self._is_stepping = False
        return self._end_planned() if is_last else []

    def leave(self, reason: str, *, at_once: bool = False) -> list[Action]:
        """Leave at the end of this step, for good; outside of a step, begin none, and keep the engine until a fence.

        Args:
            reason: Reason, as text for the user.
            at_once: Whether to leave without ending a step that was begun.
        """
        self._is_stepping = self._is_stepping and not at_once
        self._left = Leave(reason[:MAX_TEXT], is_resting=not self._is_stepping)
        return self._say(self._left)

    def begin_checkpoint(self, path: str) -> list[Action]:
        """This worker begins to write its part of a checkpoint of the step that it has committed."""
        if self.phase != "member" or self.table is None:
            return []
        return self._say(CheckpointBegin(self.table.epoch, self.state.committed, path))

    def end_checkpoint(self, epoch: int, step: int, path: str) -> list[Action]:
        """It has written its part of a checkpoint that it began in an epoch, durably."""
        # Weights of a follower that were not compared are no part of a checkpoint.
        return [] if self.state.is_lost else self._say(CheckpointEnd(epoch, step, path))

    def damaged(self) -> list[Action]:
        """The checkpoint of the table is damaged: the epoch ends, and the next one has another checkpoint."""
        table = self.table
        if self.phase not in ("building", "member") or table is None:
            return []
        return self._say(CheckpointDamaged(table.epoch, table.resume_step, table.checkpoint))

    # --- Copies beside steps ---

    def overwriting(self) -> list[Action]:
        """As a follower, this worker is about to overwrite its weights; until then others may go on with them."""
        assert self._follow is not None
        self.state = WorkerState(self._follow.table.boot)
        return self._ready_if_idle()

    def followed(self, number: int, step: int, backlog: int) -> list[Action]:
        """As a follower, this worker has the weights of a step.

        Args:
            number: Number of the copy.
            step: Step of its weights.
            backlog: Later steps that the source had committed when it had sent this one.
        """
        follow = self._follow
        if self.phase != "idle" or follow is None or follow.number != number:
            return []
        self.followed_step = step
        return self._say(Followed(follow.table.epoch, number, step, backlog))

    def unfollowed(self, number: int, text: str) -> list[Action]:
        """A copy beside steps has failed.

        Args:
            number: Number of the copy.
            text: Type and text of the exception; cut after 4,096 characters.
        """
        follow = self._follow
        if follow is None or follow.number != number:
            return []
        return self._say(Unfollowed(follow.table.epoch, number, text[:MAX_TEXT]))

    def _begin_copy(self, follow: Follow) -> list[Action]:
        table, rank = follow.table, self._rank_in(follow.table)
        if rank is None:
            return []
        if rank == table.source_rank:
            if self.phase not in ("building", "member") or self._epoch_id != (table.boot, table.epoch):
                return []
        elif self.phase != "idle":
            return []
        self._follow, self.followed_step = follow, None
        return [Copy(follow, rank)]

    # --- Small things ---

    @property
    def _epoch_id(self) -> tuple[int, int]:
        return (0, 0) if self.table is None else (self.table.boot, self.table.epoch)

    def _rank_in(self, table: Table) -> int | None:
        own = (self._hello.worker_id, self._hello.incarnation)
        return next((one.rank for one in table.members if (one.worker_id, one.incarnation) == own), None)

    def _take(self, table: Table) -> list[Action]:
        self._heard = (table.boot, table.epoch)
        rank = self._rank_in(table)
        if self.phase != "idle" or rank is None:
            return []
        if self._heard in self._ended:
            # It was sent twice, or by a coordinator that begins with an old state.
            return self._ready_if_idle()
        self.table, self.phase, self._planned, self._follow = table, "building", None, None
        self.rank, self.over, self._fault = rank, None, None
        return [Build(table, rank, self._duty(table, rank))]

    def _duty(self, table: Table, rank: int) -> Duty:
        if rank in table.survivors:
            return "apply" if self.state.in_doubt and self.state.reach == table.resume_step else "keep"
        return "load" if table.source_rank is None else "copy"

    def _fenced(self, fence: Fence) -> list[Action]:
        self._heard = (fence.boot, fence.epoch)
        is_of_table = self._epoch_id == self._heard
        told: list[Action] = []
        if is_of_table and not fence.planned and self.over is None:
            self.over, self._fault = fence, None
            if fence.cause not in _ORDERLY:
                told = [Warn(f"epoch {fence.epoch} is over: {fence.text}")]
        if self.phase in ("away", "idle"):
            return [*told, *self._ready_if_idle()]
        if self.phase not in ("building", "member"):
            return told
        if fence.planned and is_of_table:
            # Members agree on the last step in its barrier, so one that is outside of a step goes on to the next.
            self._planned = fence
            return []
        self.phase = "ending"
        return [*told, EndEngine(fence)]

    def _end_planned(self) -> list[Action]:
        if self.table is None or self.phase not in ("building", "member"):
            return []
        self.phase = "ending"
        # Without a fence of its own it has learned of the end in the barrier, or has asked for it.
        text = "a member has asked for the end of the epoch"
        unheard = Fence(self.table.boot, self.table.epoch, "left", None, text, planned=True)
        self.over = self._planned or unheard
        return [EndEngine(self.over)]

    def _refused(self, refused: Refused) -> list[Action]:
        has_engine = self.phase in ("building", "member")
        self.phase = "over"
        if has_engine and self.table is not None:
            fence = Fence(self.table.boot, self.table.epoch, "evicted", self.seat, refused.text)
            return [EndEngine(fence), GiveUp(refused)]
        return [GiveUp(refused)]

    def _ready_if_idle(self) -> list[Action]:
        return self._say(Ready(self.state, *self._heard)) if self.phase == "idle" else []

    def _say(self, message: FromWorker) -> list[Action]:
        """Say something, if there is a connection; what the coordinator must know is said again with the next one."""
        return [Say(message)] if self._is_connected else []
