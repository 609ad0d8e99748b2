"""Boards in memory, for ranks in one process and virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from softs_fast.averaging import Board, Donation, Member, Refused
from softs_fast.averaging.reports import MAX_REPORTS, Report


@dataclass
class Snapshot:
    tensors: dict[str, torch.Tensor]
    step: int
    metric: float | None
    trained: int
    config: Mapping[str, Any] | None
    published_s: float


@dataclass
class World:
    """All that ranks have published, and the clock."""

    now_s: float = 0.0
    copy_s: float = 0.0
    snapshots: dict[int, list[Snapshot]] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    reports: dict[int, list[Report]] = field(default_factory=dict)
    is_fixed: bool = False
    asked: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    torn: set[int] = field(default_factory=set)
    #: Ranks of which no fetch is complete yet.
    reading: set[int] = field(default_factory=set)
    n_reads: int = 0

    def clock(self) -> float:
        return self.now_s


@dataclass
class MemoryFetch:
    donations: list[Donation]
    tensors: dict[str, torch.Tensor]

    def apply(self, into: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in into.items():
                tensor.copy_(self.tensors[name])


class MemoryBoard(Board):
    """The place of one rank in a world."""

    def __init__(self, world: World, rank: int) -> None:
        self.world = world
        self._rank = rank
        self.n_closed = 0
        self._found: MemoryFetch | Refused | None = None

    @property
    def rank(self) -> int:
        return self._rank

    def open(self, tensors: Mapping[str, torch.Tensor], as_is: Set[str] = frozenset()) -> bytes:
        self._as_is = as_is
        digest = repr([(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]).encode()
        self.world.digests[self.rank] = digest
        self.world.snapshots[self.rank] = []
        self.world.reports[self.rank] = []
        return digest

    @property
    def is_fixed(self) -> bool:
        return self.world.is_fixed

    def report(self, report: Report) -> None:
        self.world.reports[self.rank].append(report)

    def members(self) -> Sequence[Member]:
        return [
            self._seen(rank, snapshots)
            for rank, snapshots in self.world.snapshots.items()
            if rank != self.rank
        ]

    def _seen(self, rank: int, snapshots: list[Snapshot]) -> Member:
        last = snapshots[-1] if snapshots else Snapshot({}, 0, None, 0, None, 0.0)
        alive = rank not in self.world.dead
        reports = tuple(self.world.reports[rank][-MAX_REPORTS:])
        return Member(
            rank, alive, len(snapshots), last.trained, last.metric, self.world.digests[rank], reports
        )

    def publish(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None,
    ) -> int:
        self.world.now_s += self.world.copy_s
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.world.snapshots[self.rank].append(
            Snapshot(copies, step, metric, trained, config, self.world.now_s)
        )
        self.world.asked.discard(self.rank)
        return len(self.world.snapshots[self.rank])

    def ask(self, ranks: Iterable[int]) -> None:
        self.world.asked.update(ranks)

    def is_asked(self) -> bool:
        return self.rank in self.world.asked

    def fetch(self, donors: Sequence[tuple[int, float]]) -> None:
        self._found = self._read(donors)

    def fetched(self) -> MemoryFetch | Refused | None:
        return None if self.rank in self.world.reading else self._found

    def _read(self, donors: Sequence[tuple[int, float]]) -> MemoryFetch | Refused:
        self.world.n_reads += 1
        donations = []
        taken = []
        for rank, weight in donors:
            if rank in self.world.dead:
                return Refused(rank, "it has ended")
            if rank in self.world.torn:
                return Refused(None, "it publishes too often")
            last = self.world.snapshots[rank][-1]
            if not all(
                bool(tensor.isfinite().all())
                for name, tensor in last.tensors.items()
                if name not in self._as_is and tensor.is_floating_point()
            ):
                return Refused(rank, "its weights are not finite")
            taken.append((weight, last.tensors))
            age_s = self.world.now_s - last.published_s
            version = len(self.world.snapshots[rank])
            donations.append(Donation(rank, weight, version, last.step, last.metric, age_s, last.config))
        found = {}
        for name, tensor in taken[0][1].items():
            if tensor.is_floating_point():
                wide = sum(weight * tensors[name].double() for weight, tensors in taken)
                found[name] = torch.as_tensor(wide).to(tensor.dtype)
            else:
                found[name] = torch.stack([tensors[name] for _, tensors in taken]).max(0).values
        return MemoryFetch(donations, found)

    def difference(self, rank: int) -> str:
        return f"{self.world.digests[self.rank].decode()} / {self.world.digests[rank].decode()}"

    def close(self) -> None:
        self.n_closed += 1
        self.world.dead.add(self.rank)
