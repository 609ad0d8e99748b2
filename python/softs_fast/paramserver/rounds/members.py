"""The members of a run: which workers are alive, their ranks and clocks."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..wire.messages import MemberState
from .events import Version
from .options import MAX_TEXT
from .pace import RECENT, hung_after_s

__all__ = ["Member", "Members", "titles"]

#: Members that are gone and may still ask, and processes that try to join, at most.
_MAX_GONE = 1024
#: Versions for which a member's pushes were counted, at most.
_MAX_COUNTED = 64
#: Names in a text, at most.
_MOST_NAMES = 5


@dataclass(eq=False)
class Member:
    """A worker.

    Attributes:
        worker_id: Id of the worker.
        name: Name of the worker, for people.
        process: Name of its process, the same for all its joins; "" if it is not known.
        rank: Rank among the members; free for another one once this one is gone.
        state: `joining` until its first request after the join, so the lost answer of a join leaves nothing to wait for;
            `paused`: alive, but it does nothing; `stalled`: alive, but it makes no progress with what it should do.
        seen_s: Time of its last request.
        moved_s: Time of its last progress.
        progress: Count in its last heartbeat.
        busy_s: Time since which the run expects a push; None while the worker has pushed and waits.
        work_s: Seconds from weights to push, of its recent pushes.
        can_return: Whether it has made a request since its join, so that a later one makes it a member again once it
            is gone.
        is_out: Whether it rests because there are no samples for it.
        clock: Pushes of it that count, plus the least clock of all when it joined.
        applied_clock: Clock of its pushes that are in the weights.
        is_behind: Whether it was away so long that its clock means nothing until it pulls.
        counted: Bases of its last pushes that count.
        pushes: Pushes that count.
        refused: Pushes that do not count.
        loss: Loss of the last push that counts.
        lease_number: Number of its last lease of samples.
    """

    worker_id: str
    name: str
    rank: int
    seen_s: float
    moved_s: float
    busy_s: float | None
    state: MemberState | Literal["gone"] = "joining"
    process: str = ""
    progress: int | None = None
    work_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    can_return: bool = False
    is_out: bool = False
    clock: int = 0
    applied_clock: int = 0
    is_behind: bool = False
    counted: deque[Version] = field(default_factory=lambda: deque(maxlen=_MAX_COUNTED))
    pushes: int = 0
    refused: int = 0
    loss: float | None = None
    lease_number: int = -1

    @property
    def title(self) -> str:
        """Name and rank, for people."""
        return f'worker "{self.name}" (rank {self.rank})'


class Members:
    """All members by id; those that are gone are kept for a while, because they may only have been silent.

    Args:
        max_workers: Members at a time, at most.
        lost_after_s: Seconds of silence after which a member is gone.
    """

    def __init__(self, max_workers: int, lost_after_s: float) -> None:
        self._max_workers = max_workers
        self._lost_after_s = lost_after_s
        self._by_id: dict[str, Member] = {}
        #: When each process that has no rank yet has first tried to join.
        self._attempts: OrderedDict[str, float] = OrderedDict()
        self.banned: set[str] = set()
        #: Before the first push of any member there is no measure.
        self._hung_s = math.inf

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, worker_id: str) -> Member | None:
        """Return a member, or one that is gone; None if there is none."""
        return self._by_id.get(worker_id)

    def active(self) -> list[Member]:
        """Return the members that push."""
        return [one for one in self if one.state == "active"]

    def out(self) -> list[Member]:
        """Return the members for which there are no samples."""
        return [one for one in self if one.state == "paused" and one.is_out]

    def present(self) -> list[Member]:
        """Return the members that are not gone."""
        return [one for one in self if one.state != "gone"]

    def add(
        self, worker_id: str, name: str, now_s: float, before: Member | None = None, world_size: int = 0
    ) -> Member | None:
        """Make a member, with the rank that it had before if that is free; None if there is no rank.

        A new process gets the rank of the last member of its name that is gone: it may be that one, started again. Ranks
        of the world go first. Of members that never made a request after their join, the oldest makes room if there is
        no rank else.

        Args:
            worker_id: Id of the new member.
            name: Name of it, for people.
            now_s: Time of its join.
            before: Member that it was before, if it knows.
            world_size: Ranks that must not stay free.
        """
        wanted = before.rank if before is not None else self._last_rank_of(name)
        if wanted is not None and wanted >= world_size and self.has_room(world_size):
            wanted = None
        rank = self._free_rank(wanted)
        if rank is None:
            ghost = next((one for one in self if one.state == "joining" and not one.can_return), None)
            if ghost is None:
                return None
            del self._by_id[ghost.worker_id]
            rank = ghost.rank
        member = self._by_id[worker_id] = Member(worker_id, name[:MAX_TEXT], rank, now_s, now_s, now_s)
        if before is not None:
            member.counted.extend(before.counted)
        return member

    def unproven(self, process: str, world_size: int, now_s: float) -> list[Member]:
        """Return the members of the world that may be gone, if a process that joins would get a rank above the world.

        One of them may be the life of the process before a restart, and no other process has its samples. Each is alive if it
        asks for something after the first attempt to join, and gone after its lease.

        Args:
            process: Name of the process; "" if it is not known, and then it does not wait.
            world_size: Ranks that have samples of their own.
            now_s: Time of this attempt.
        """
        if not process or self.has_room(world_size):
            # A member that has asked since that attempt may be gone at a later one.
            self._attempts.pop(process, None)
            return []
        since_s = self._attempts.setdefault(process, now_s)
        self._attempts.move_to_end(process)
        if len(self._attempts) > _MAX_GONE:
            self._attempts.popitem(last=False)
        found = [one for one in self.present() if one.rank < world_size and one.seen_s <= since_s]
        if not found:
            del self._attempts[process]
        return found

    def has_room(self, world_size: int) -> bool:
        """Return whether a rank below the world is free."""
        return len({one.rank for one in self.present() if one.rank < world_size}) < world_size

    def restore(self, member: Member) -> None:
        """Add a member of a server before this one."""
        self._by_id[member.worker_id] = member

    def revive(self, member: Member) -> bool:
        """Make one that was silent a member again, if its rank is still free; return whether it is one."""
        if not member.can_return or self._free_rank(member.rank) != member.rank:
            return False
        member.state = "joining"
        return True

    def remove(self, member: Member, can_return: bool) -> None:
        """Make a member one that is gone."""
        member.state, member.can_return = "gone", member.can_return and can_return
        # The newest last, so that the oldest are dropped.
        self._by_id[member.worker_id] = self._by_id.pop(member.worker_id)
        gone = [one for one in self if one.state == "gone"]
        for one in gone[: len(gone) - _MAX_GONE]:
            del self._by_id[one.worker_id]

    def silent(self, now_s: float) -> list[Member]:
        """Return the members of which the lease has ended."""
        return [one for one in self.present() if now_s >= one.seen_s + self._lost_after_s]

    def hung(self, now_s: float) -> list[Member]:
        """Return the active members of which the run expects a push, and that have made no progress for too long."""
        return [one for one in self.active() if now_s >= self._hangs_at_s(one)]

    def note_work(self, member: Member, now_s: float) -> None:
        """Remember how long a push has taken."""
        if member.busy_s is not None:
            member.work_s.append(now_s - member.busy_s)
            self._hung_s = hung_after_s([one.work_s for one in self], self._lost_after_s)

    def excuse(self, now_s: float) -> None:
        """Begin all leases anew, after a time in which the server could not see any request."""
        for one in self.present():
            one.seen_s = one.moved_s = now_s
            one.busy_s = None if one.busy_s is None else now_s

    def next_end_s(self) -> float | None:
        """Return when the first lease ends, or the first member hangs; None without members."""
        ends = [one.seen_s + self._lost_after_s for one in self.present()]
        return min((*ends, *(self._hangs_at_s(one) for one in self.active())), default=None)

    def least_clock(self, applied: bool, but: Iterable[Member] = ()) -> int | None:
        """Return the clock of the slowest active member, counted or applied; None if there is none."""
        excluded = {one.worker_id for one in but}
        clocks = (
            one.applied_clock if applied else one.clock
            for one in self.active()
            if not one.is_behind and one.worker_id not in excluded
        )
        return min(clocks, default=None)

    def _hangs_at_s(self, member: Member) -> float:
        return math.inf if member.busy_s is None else max(member.busy_s, member.moved_s) + self._hung_s

    def _last_rank_of(self, name: str) -> int | None:
        """Return the rank of the last member of a name that is gone: its process may have been started again."""
        found = [one.rank for one in self if one.state == "gone" and one.name == name[:MAX_TEXT]]
        return found[-1] if found else None

    def _free_rank(self, wanted: int | None) -> int | None:
        """Return the wanted rank if it is free, else the least free one; None if there is none."""
        taken = {one.rank for one in self.present()}
        if wanted is not None and wanted < self._max_workers and wanted not in taken:
            return wanted
        return next((rank for rank in range(self._max_workers) if rank not in taken), None)


def titles(members: list[Member]) -> str:
    """Return names and ranks, for people."""
    more = f" and {len(members) - _MOST_NAMES} more" if len(members) > _MOST_NAMES else ""
    return ", ".join(one.title for one in members[:_MOST_NAMES]) + more
