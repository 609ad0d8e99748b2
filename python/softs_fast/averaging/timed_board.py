"""A board that measures how long its copies take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from softs_fast.averaging.board import Board, Donation, Fetch, Refused
from softs_fast.averaging.decide import Member
from softs_fast.averaging.reports import Report

# Of the measurements of one kind, so many are kept.
_MOST_KEPT = 10_000


class Timing(dict[str, deque[float]]):
    """Seconds of the last calls, by what was done."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: deque(maxlen=_MOST_KEPT) for name in names})

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the seconds of a block."""
        start = time.perf_counter()
        yield
        self[name].append(time.perf_counter() - start)


@dataclass(frozen=True)
class TimedFetch:
    """What another board has fetched, measured."""

    donations: Sequence[Donation]
    fetch: Fetch
    timing: Timing
    name: str

    def apply(self, into: Mapping[str, torch.Tensor]) -> None:
        """As the other board, measured."""
        with self.timing.measure(self.name):
            self.fetch.apply(into)


class TimedBoard(Board):
    """Another board, measured.

    Args:
        board: The other one.
        timing: Dict that gets the seconds.
        reading: Name of the seconds from the beginning of a fetch to the call that finds it complete.
        applying: Name of the seconds of copying what was fetched.
        publishing: Name of the seconds of snapshots.
    """

    def __init__(self, board: Board, timing: Timing, *, reading: str, applying: str, publishing: str) -> None:
        self._board = board
        self._timing = timing
        self._reading = reading
        self._applying = applying
        self._publishing = publishing
        self._began_s: float | None = None

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._board.rank

    def open(self, tensors: Mapping[str, torch.Tensor], as_is: Set[str] = frozenset()) -> bytes:
        """As the other board."""
        return self._board.open(tensors, as_is)

    @property
    def is_fixed(self) -> bool:
        """As the other board."""
        return self._board.is_fixed

    def members(self) -> Sequence[Member]:
        """As the other board."""
        return self._board.members()

    def unseen(self) -> Mapping[int, str]:
        """As the other board."""
        return self._board.unseen()

    def report(self, report: Report) -> None:
        """As the other board."""
        self._board.report(report)

    def publish(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        step: int,
        metric: float | None,
        trained: int,
        config: Mapping[str, Any] | None,
    ) -> int:
        """As the other board, measured."""
        with self._timing.measure(self._publishing):
            return self._board.publish(tensors, step=step, metric=metric, trained=trained, config=config)

    def follow(self, optimizer: Optimizer | None, late: Collection[str]) -> None:
        """As the other board."""
        self._board.follow(optimizer, late)

    def settle(self) -> None:
        """As the other board."""
        self._board.settle()

    def inspected(self) -> tuple[int, bool] | None:
        """As the other board."""
        return self._board.inspected()

    def ask(self, ranks: Iterable[int]) -> None:
        """As the other board."""
        self._board.ask(ranks)

    def is_asked(self) -> bool:
        """As the other board."""
        return self._board.is_asked()

    def fetch(self, donors: Sequence[tuple[int, float]]) -> None:
        """As the other board."""
        self._began_s = time.perf_counter()
        self._board.fetch(donors)

    def fetched(self) -> Fetch | Refused | None:
        """As the other board, measured."""
        found = self._board.fetched()
        if self._began_s is None or found is None or isinstance(found, Refused):
            return found
        self._timing[self._reading].append(time.perf_counter() - self._began_s)
        self._began_s = None
        return TimedFetch(found.donations, found, self._timing, self._applying)

    def difference(self, rank: int) -> str:
        """As the other board."""
        return self._board.difference(rank)

    def close(self) -> None:
        """As the other board."""
        self._board.close()
