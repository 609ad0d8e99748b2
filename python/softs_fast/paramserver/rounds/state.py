"""The state of a run, which the modules of the machine share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .events import Action, Log, Push, Share, Version
from .leases import Leases
from .members import Member, Members
from .options import RunOptions
from .snapshot import MemberRecord, Snapshot

__all__ = ["Contribution", "Phase", "State"]

Phase = Literal["waiting", "open", "grace", "apply", "done"]


@dataclass(frozen=True, eq=False)
class Contribution:
    """A push that counts, and that no step has used yet."""

    member: Member
    rank: int
    push: Push

    def share(self, weight: float) -> Share:
        """Return it as a part of an average."""
        return Share(self.rank, self.push, weight)


@dataclass
class State:
    """Of a run.

    Attributes:
        options: Options of the run.
        timeline: Timeline of this server.
        members: Members, alive and gone.
        leases: Leases of samples.
        now_s: Latest time that the machine was told.
        number: Version of the weights.
        phase: Phase of the run: what it does.
        since_s: Time at which the phase began.
        has_opened: Whether a round has been opened, in this timeline or before.
        is_told_to_start: Whether the owner does not want to wait for the whole world.
        pending: Pushes that count, in their order of arrival.
        applying: Pushes that a step is using.
        samples: Samples that steps have used.
        skipped: Steps that changed nothing, because they were not finite.
        refused: Pushes that did not count.
        loss: Mean loss of the last step, weighted by samples; None before the first.
        pause_reason: Reason for which the run is paused; None: it is not.
        paused_at_s: Time at which the pause began.
        paused_s: Seconds of all earlier pauses.
        ending: Reason for which the run ends after the open round; None: it does not.
        over: Reason for which the run has ended, and whether something is broken.
        actions: Actions of the present event.
    """

    options: RunOptions
    timeline: int
    members: Members
    leases: Leases
    now_s: float
    number: int = 0
    phase: Phase = "waiting"
    since_s: float = 0.0
    has_opened: bool = False
    is_told_to_start: bool = False
    pending: list[Contribution] = field(default_factory=list)
    applying: list[Contribution] = field(default_factory=list)
    samples: int = 0
    skipped: int = 0
    refused: int = 0
    loss: float | None = None
    pause_reason: str | None = None
    paused_at_s: float = 0.0
    paused_s: float = 0.0
    ending: str | None = None
    over: tuple[str, bool] | None = None
    actions: list[Action] = field(default_factory=list)

    @property
    def version(self) -> Version:
        """The last committed weights."""
        return Version(self.timeline, self.number)

    @property
    def clock_s(self) -> float:
        """The time, without pauses."""
        return (self.now_s if self.pause_reason is None else self.paused_at_s) - self.paused_s

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        if phase != self.phase:
            self.phase, self.since_s = phase, self.now_s

    def log(self, text: str, is_warning: bool = False) -> None:
        """Tell people."""
        self.actions.append(Log(text, is_warning))

    def snapshot(self) -> Snapshot:
        """Return what a server after this one has to know."""
        return Snapshot(
            timeline=self.timeline,
            version=self.number,
            has_opened=self.has_opened,
            samples=self.samples,
            members=tuple(
                MemberRecord(
                    one.worker_id,
                    one.name,
                    one.rank,
                    one.applied_clock,
                    self._in_weights(one),
                    one.state == "gone",
                )
                for one in self.members
            ),
            leases=self.leases.record(),
            banned=tuple(sorted(self.members.banned)),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Take what a server before this one knew."""
        self.number, self.samples, self.has_opened = snapshot.version, snapshot.samples, snapshot.has_opened
        self.members.banned |= set(snapshot.banned)
        for record in snapshot.members:
            # Silent until its first request; if there is none, its lease ends.
            member = Member(record.worker_id, record.name, record.rank, self.now_s, self.now_s, self.now_s)
            member.clock = member.applied_clock = record.clock
            member.can_return = True
            if record.is_gone:
                member.state = "gone"
            if record.last is not None:
                member.counted.append(Version(*record.last))
            self.members.restore(member)

    def _in_weights(self, member: Member) -> tuple[int, int] | None:
        """Return the base of the last push of a member that a step has used: the only one that may be sent once more."""
        waiting = {(one.member.worker_id, one.push.base) for one in (*self.pending, *self.applying)}
        bases = [one for one in member.counted if (member.worker_id, one) not in waiting]
        return (bases[-1].timeline, bases[-1].number) if bases else None
