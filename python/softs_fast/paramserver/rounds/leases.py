"""Leases of samples: each position of an epoch is trained on once, whichever workers die."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import ConfigError

__all__ = ["MAX_RANGES", "LaneRecord", "Leases", "Range"]

#: Ranges of one lease, at most; a worker gets fewer samples than it asked for where they are in many pieces.
MAX_RANGES = 64


class Range(NamedTuple):
    """Positions `start`, `start + step`, ... below `stop` in the permutation of an epoch."""

    epoch: int
    start: int
    stop: int
    step: int

    @property
    def n(self) -> int:
        """Positions in it."""
        return max(0, -(-(self.stop - self.start) // self.step))

    def split(self, n: int) -> tuple[Range, Range]:
        """Return the first n positions, and the others."""
        middle = min(self.stop, self.start + n * self.step)
        return self._replace(stop=middle), self._replace(start=middle)


class LaneRecord(NamedTuple):
    """The newest epoch of a lane, and the positions of begun epochs that no step has used."""

    epoch: int
    ranges: tuple[Range, ...]


@dataclass
class _Lane:
    """The positions that one rank gets, or all workers."""

    first: int
    step: int
    #: Of the newest epoch that has been begun; -1 before the first.
    epoch: int = -1
    todo: deque[Range] = field(default_factory=deque)


class Leases:
    """Hands out positions, and takes them back from workers that are gone.

    A position is to do, held by a worker, counted with a push, or done with the step that used the push.
    An epoch begins when no position of the one before is left to do, although some may still be held.

    Args:
        size: Positions of an epoch.
        world_size: Ranks, if each gets positions of its own (rank, rank + world_size, ...); None: all workers get the next
            ones.
        epochs: Epochs at most; None for any number.
        records: Lane records of a server before this one.

    Raises:
        ConfigError: the records are of another number of ranks.
    """

    def __init__(
        self,
        size: int,
        world_size: int | None = None,
        epochs: int | None = None,
        records: Sequence[LaneRecord] = (),
    ) -> None:
        self._size = size
        self._epochs = epochs
        self._lanes = [_Lane(first, world_size or 1) for first in range(world_size or 1)]
        self._held: dict[str, tuple[object, tuple[Range, ...]]] = {}
        self._counted: dict[int, tuple[Range, ...]] = {}
        self.n_done = 0
        self._restore(records)

    def take(self, worker_id: str, rank: int, n: int, key: object = None) -> tuple[Range, ...]:
        """Return samples for a worker: those that it holds already, or else up to n new ones.

        Args:
            worker_id: Id of the worker.
            rank: Rank of the worker.
            n: Samples, at most.
            key: Purpose of the lease; one for something else is taken back first. None: any purpose.
        """
        if worker_id in self._held:
            held_for, ranges = self._held[worker_id]
            if key is None or held_for is None or held_for == key:
                return ranges
            self.release(worker_id)
        lane = self._lanes[rank % len(self._lanes)]
        taken: list[Range] = []
        while n > 0 and len(taken) < MAX_RANGES:
            # A lease is of one epoch.
            if taken and not (lane.todo and lane.todo[0].epoch == taken[0].epoch):
                break
            if not self._fill(lane):
                break
            one, rest = lane.todo.popleft().split(n)
            if rest.n:
                lane.todo.appendleft(rest)
            taken.append(one)
            n -= one.n
        if taken:
            self._held[worker_id] = (key, tuple(taken))
        return tuple(taken)

    def has(self, worker_id: str, key: object) -> bool:
        """Return whether a worker holds samples for something."""
        return worker_id in self._held and self._held[worker_id][0] in (None, key)

    def count(self, worker_id: str, content: int, key: object) -> None:
        """Note that a push counts that has used what a worker holds."""
        if self.has(worker_id, key):
            self._counted[content] = self._held.pop(worker_id)[1]

    def commit(self, content: int) -> None:
        """Note that a step has used a push."""
        self.n_done += sum(one.n for one in self._counted.pop(content, ()))

    def drop(self, content: int) -> None:
        """Take back the samples of a counted push that no step will use."""
        self._give_back(self._counted.pop(content, ()))

    def release(self, worker_id: str, key: object = None) -> None:
        """Take back what a worker holds; with a key, only if it holds it for that."""
        if worker_id in self._held and (key is None or self._held[worker_id][0] == key):
            self._give_back(self._held.pop(worker_id)[1])

    def held(self, worker_id: str) -> int:
        """Return how many samples a worker holds."""
        return sum(one.n for one in self._held.get(worker_id, (None, ()))[1])

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to hand out, unless a worker gives something back."""
        if self._epochs is None or self._size == 0:
            return False
        return all(
            not lane.todo and (lane.epoch + 1 >= self._epochs or not self._whole(lane).n)
            for lane in self._lanes
        )

    @property
    def is_done(self) -> bool:
        """Whether steps have used all epochs."""
        return self.is_drained and not self._held and not self._counted

    @property
    def epoch(self) -> int:
        """The oldest epoch with a position to do; the newest one if there is none."""
        return min((lane.todo[0].epoch if lane.todo else max(0, lane.epoch)) for lane in self._lanes)

    def records(self) -> tuple[LaneRecord, ...]:
        """Return what a server after this one has to know."""
        left = [list(lane.todo) for lane in self._lanes]
        for ranges in (*(held for _, held in self._held.values()), *self._counted.values()):
            for one in ranges:
                left[self._lane_of(one)].append(one)
        return tuple(
            LaneRecord(lane.epoch, tuple(_joined(sorted(ranges))))
            for lane, ranges in zip(self._lanes, left, strict=True)
        )

    def _fill(self, lane: _Lane) -> bool:
        """Begin the next epoch of a lane if nothing is left to do; return whether there is something."""
        if not lane.todo and (self._epochs is None or lane.epoch + 1 < self._epochs):
            whole = self._whole(lane)
            if whole.n:
                lane.epoch += 1
                lane.todo.append(whole)
        return bool(lane.todo)

    def _whole(self, lane: _Lane) -> Range:
        """All positions of the next epoch."""
        return Range(lane.epoch + 1, lane.first, self._size, lane.step)

    def _lane_of(self, one: Range) -> int:
        return one.start % len(self._lanes)

    def _give_back(self, ranges: Iterable[Range]) -> None:
        changed = set()
        for one in ranges:
            self._lanes[self._lane_of(one)].todo.append(one)
            changed.add(self._lane_of(one))
        for number in changed:
            self._lanes[number].todo = deque(_joined(sorted(self._lanes[number].todo)))

    def _restore(self, records: Sequence[LaneRecord]) -> None:
        if not records:
            return
        if len(records) != len(self._lanes):
            raise ConfigError(
                f"the file has the samples of {len(records)} ranks, the run has {len(self._lanes)}; begin with the "
                "fixed world that it had"
            )
        for lane, record in zip(self._lanes, records, strict=True):
            lane.epoch = record.epoch
            lane.todo.extend(record.ranges)


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Join neighbours; the ranges are sorted, and none overlaps another."""
    last: Range | None = None
    for one in ranges:
        if last is None:
            last = one
        elif (last.epoch, last.step) == (
            one.epoch,
            one.step,
        ) and last.start + last.n * last.step == one.start:
            last = last._replace(stop=one.stop)
        else:
            yield last
            last = one
    if last is not None:
        yield last
