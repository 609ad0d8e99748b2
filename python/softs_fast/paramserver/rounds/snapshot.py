"""What a server must know again after a restart; weights and optimizer apart."""

from __future__ import annotations

from dataclasses import dataclass

from .leases import LeaseRecord

__all__ = ["MemberRecord", "Snapshot"]


@dataclass(frozen=True)
class MemberRecord:
    """A member, when the file was written.

    Attributes:
        worker_id: Id of the worker.
        name: Its name, for people.
        rank: Its rank.
        clock: Its pushes that are in the weights, plus the least of all when it joined.
        last: Timeline and version of the last of these pushes: one that is sent again is counted, and changes nothing.
        is_gone: Whether it was gone.
    """

    worker_id: str
    name: str
    rank: int
    clock: int
    last: tuple[int, int] | None = None
    is_gone: bool = False


@dataclass(frozen=True)
class Snapshot:
    """A run at a commit.

    Attributes:
        timeline: Timeline of the server that wrote it.
        version: Steps so far.
        has_opened: Whether a round has been opened.
        samples: Samples that the steps have used.
        members: Members, and those that are gone and may ask again.
        leases: Samples that no step has used.
        banned: Ids and processes that the owner has removed.
    """

    timeline: int
    version: int
    has_opened: bool
    samples: int
    members: tuple[MemberRecord, ...]
    leases: LeaseRecord
    banned: tuple[str, ...]
