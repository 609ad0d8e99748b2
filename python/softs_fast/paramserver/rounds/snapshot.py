"""What a server must know again after a restart; weights and optimizer apart."""

from __future__ import annotations

from dataclasses import dataclass

from .leases import LaneRecord

__all__ = ["MemberRecord", "Snapshot"]


@dataclass(frozen=True)
class MemberRecord:
    """A member, when the file was written."""

    id: str
    name: str
    rank: int
    clock: int


@dataclass(frozen=True)
class Snapshot:
    """A run at a commit.

    Attributes:
        timeline: of the server that wrote it.
        version: steps so far.
        has_opened: whether a round has been opened.
        samples: that the steps have used.
        members: that are not gone.
        lanes: samples that no step has used.
        banned: names and ids that the owner has removed.
    """

    timeline: int
    version: int
    has_opened: bool
    samples: int
    members: tuple[MemberRecord, ...]
    lanes: tuple[LaneRecord, ...]
    banned: tuple[str, ...]
