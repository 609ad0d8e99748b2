"""A board that measures how long its copies take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from softs_fast.averaging.board import Board, Donation, Refused
from softs_fast.averaging.decide import Member

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


class TimedBoard(Board):
    """Another board, measured.

    Args:
        board: the other one.
        timing: gets the seconds.
        reading: under this name, those of averages.
        publishing: under this name, those of snapshots.
    """

    def __init__(self, board: Board, timing: Timing, *, reading: str, publishing: str) -> None:
        self._board = board
        self._timing = timing
        self._reading = reading
        self._publishing = publishing

    @property
    def rank(self) -> int:
        """This rank's number."""
        return self._board.rank

    def open(self, tensors: Mapping[str, torch.Tensor]) -> bytes:
        """As the other board."""
        return self._board.open(tensors)

    def members(self) -> Sequence[Member]:
        """As the other board."""
        return self._board.members()

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

    def ask(self, ranks: Iterable[int]) -> None:
        """As the other board."""
        self._board.ask(ranks)

    def is_asked(self) -> bool:
        """As the other board."""
        return self._board.is_asked()

    def average(
        self, donors: Sequence[tuple[int, float]], into: Mapping[str, torch.Tensor]
    ) -> Sequence[Donation] | Refused:
        """As the other board, measured."""
        with self._timing.measure(self._reading):
            return self._board.average(donors, into)

    def difference(self, rank: int) -> str:
        """As the other board."""
        return self._board.difference(rank)

    def close(self) -> None:
        """As the other board."""
        self._board.close()
