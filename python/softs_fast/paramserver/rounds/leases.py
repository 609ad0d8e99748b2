"""Leases of samples: each position of an epoch is trained on once, whichever workers die."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["MAX_RANGES", "LeaseRecord", "Leases", "Range"]

#: Ranges of one lease, at most; a worker gets fewer samples than it asked for where they are in many pieces.
MAX_RANGES = 64


class Range(NamedTuple):
    """Positions from `start` to `stop` - 1 in the permutation of an epoch."""

    epoch: int
    start: int
    stop: int

    @property
    def n(self) -> int:
        """Positions in it."""
        return self.stop - self.start

    def split(self, n: int) -> tuple[Range, Range]:
        """Return the first n positions, and the others."""
        middle = min(self.stop, self.start + n)
        return self._replace(stop=middle), self._replace(start=middle)


class LeaseRecord(NamedTuple):
    """The newest epoch, -1 before the first, and the positions of begun epochs that no step has used."""

    epoch: int = -1
    ranges: tuple[Range, ...] = ()


class Leases:
    """Hands out positions, and takes them back from workers that are gone.

    A position is to do, held by a worker, counted with a push, or done with the step that used the push.
    An epoch begins when no position of the one before is left to do, although some may still be held.

    Args:
        size: Positions of an epoch.
        epochs: Epochs at most; None for any number.
        record: Record of a server before this one.
    """

    def __init__(self, size: int, epochs: int | None = None, record: LeaseRecord | None = None) -> None:
        self._size = size
        self._epochs = epochs
        self._epoch, ranges = record or LeaseRecord()
        self._todo = deque(ranges)
        self._held: dict[str, tuple[int, tuple[Range, ...]]] = {}
        self._counted: dict[int, tuple[Range, ...]] = {}

    def take(self, worker_id: str, n: int, number: int) -> tuple[Range, ...]:
        """Return samples for a worker: those that it holds already, or else up to n new ones.

        Args:
            worker_id: Id of the worker.
            n: Samples, at most.
            number: Number of the lease; one of another number is taken back first.
        """
        if self.has(worker_id, number):
            return self._held[worker_id][1]
        self.release(worker_id)
        taken: list[Range] = []
        while n > 0 and len(taken) < MAX_RANGES:
            # A lease is of one epoch.
            if taken and not (self._todo and self._todo[0].epoch == taken[0].epoch):
                break
            if not self._todo and not self._begin_epoch():
                break
            one, rest = self._todo.popleft().split(n)
            if rest.n:
                self._todo.appendleft(rest)
            taken.append(one)
            n -= one.n
        if taken:
            self._held[worker_id] = (number, tuple(taken))
        return tuple(taken)

    def has(self, worker_id: str, number: int | None) -> bool:
        """Return whether a worker holds the lease of this number."""
        return worker_id in self._held and self._held[worker_id][0] == number

    def count(self, worker_id: str, content: int, number: int | None) -> None:
        """Note that a push counts that has used a lease."""
        if self.has(worker_id, number):
            self._counted[content] = self._held.pop(worker_id)[1]

    def commit(self, content: int) -> None:
        """Note that a step has used a push."""
        self._counted.pop(content, None)

    def drop(self, content: int) -> None:
        """Take back the samples of a counted push that no step will use."""
        self._give_back(self._counted.pop(content, ()))

    def release(self, worker_id: str, number: int | None = None) -> None:
        """Take back what a worker holds; with a number, only the lease of that."""
        if worker_id in self._held and number in (None, self._held[worker_id][0]):
            self._give_back(self._held.pop(worker_id)[1])

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to hand out, unless a worker gives something back."""
        return bool(self._size) and not self._todo and not self._has_next_epoch()

    @property
    def is_done(self) -> bool:
        """Whether steps have used all epochs."""
        return self.is_drained and not self._held and not self._counted

    def record(self) -> LeaseRecord:
        """Return what a server after this one has to know."""
        held = (ranges for _, ranges in self._held.values())
        left = [*self._todo, *(one for ranges in (*held, *self._counted.values()) for one in ranges)]
        return LeaseRecord(self._epoch, tuple(_joined(left)))

    def _has_next_epoch(self) -> bool:
        return self._epochs is None or self._epoch + 1 < self._epochs

    def _begin_epoch(self) -> bool:
        """Begin the next epoch; return whether there is one."""
        if not self._size or not self._has_next_epoch():
            return False
        self._epoch += 1
        self._todo.append(Range(self._epoch, 0, self._size))
        return True

    def _give_back(self, ranges: Iterable[Range]) -> None:
        self._todo = deque(_joined([*self._todo, *ranges]))


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Sort ranges, of which none overlaps another, and join neighbours."""
    last: Range | None = None
    for one in sorted(ranges):
        if last is not None and (last.epoch, last.stop) == (one.epoch, one.start):
            last = last._replace(stop=one.stop)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last
