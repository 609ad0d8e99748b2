"""How many workers a fleet has while its load changes. Decisions only: no clock, no process."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LOOK_S", "Load", "Scaling"]

#: How often a load is measured, seconds.
LOOK_S = 1.0
#: A larger share of the time in which students wait is more than the copying of samples.
_WAITS = 0.05
#: Workers that are less busy than this are not why students wait: more of them would not help.
_BUSY = 0.75
#: Workers are added until they are busy for this share of the time.
_FULL = 0.9
#: So many workers for one that is busy are the most: added to those that serve, or left after a removal. As both have the
#: same bound, what was added is not too many for a load that has not fallen.
_MOST_PER_BUSY = 1.5
#: Looks in a row in which students wait before workers are added, and over which the workers that are busy are averaged.
_N_RECENT, _N_AVERAGE = 3, 7
#: Looks with too many workers before some are removed.
_N_IDLE = 20
#: So many changes of direction within so many seconds are the most; then no worker is removed.
_MAX_REVERSALS, _REVERSALS_S = 2, 600.0
#: So long after a worker could not start, no more are wanted than there were, seconds.
_NO_ROOM_S = 60.0


@dataclass(frozen=True)
class Load:
    """What was measured between two looks.

    Args:
        n_serving: Workers that served all the time, without those that have started or ended meanwhile.
        n_busy: How many of them were in calls, the average over the time: 0 to n_serving.
        students: Of each student the samples per second that it got, and the share of the time in which it waited, 0 to 1.
    """

    n_serving: int
    n_busy: float
    students: Sequence[tuple[float, float]]


class Scaling:
    """The number of workers that a load needs, between two bounds.

    Workers are added when students have waited and workers were busy, as many as the students would keep busy if they
    never waited, but at most half of those that serve; each one that starts raises this bound. Workers are removed when
    all of the last 20 s has needed fewer.
    A load that comes and goes keeps its workers after two changes of direction in ten minutes; more are added all the
    same.

    Args:
        least: The smallest number of workers, with which it begins.
        most: The largest.

    Attributes:
        n_workers: The number that is wanted now.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self.n_workers = least
        #: The largest number until that time, if a worker could not start.
        self._room, self._no_room_until = most, -math.inf
        #: Since more of them serve, or were added.
        self._loads: deque[Load] = deque(maxlen=_N_IDLE)
        #: Looks in a row in which students have waited.
        self._n_waits = 0
        self._is_growing: bool | None = None
        self._reversed_at: deque[float] = deque(maxlen=_MAX_REVERSALS)

    def decide(self, load: Load, now: float) -> str:
        """Set `n_workers` by what was measured since the look before.

        Args:
            load: What was measured.
            now: Any monotonic time, seconds.

        Returns:
            Why the number has changed; empty if it has not.
        """
        waits = _waited([load]) > _WAITS
        if waits or not _is_silent(load):
            self._n_waits = self._n_waits + 1 if waits else 0
        if load.n_serving == 0:
            return ""
        if self._loads and self._loads[-1].n_serving < load.n_serving:
            self._loads.clear()
        self._loads.append(load)
        if waits:
            if self._n_waits < _N_RECENT:
                return ""
            if reason := self._grow(now):
                return reason
        # While students wait for workers that are busy none is removed, even if they have just begun.
        is_needed = load.n_busy >= _BUSY * load.n_serving and (waits or _is_silent(load))
        if len(self._loads) == _N_IDLE and not is_needed:
            return self._shrink(now)
        return ""

    def fail(self, number: int, now: float) -> None:
        """Note that a worker could not start, for want of memory for example; for a while there is no room for it.

        Args:
            number: Its number, from 0: those with smaller ones go on.
            now: As of `decide`.
        """
        self._room, self._no_room_until = number, now + _NO_ROOM_S
        self.n_workers = number

    def _grow(self, now: float) -> str:
        n_serving = self._loads[-1].n_serving
        recent = [load for load in list(self._loads)[-_N_RECENT:] if load.n_serving == n_serving]
        n_busy, waited = _busy(recent), _waited(recent)
        if n_busy < _BUSY * n_serving:
            return ""
        needed = n_busy / (1.0 - waited) / _FULL if waited < 1.0 else math.inf
        most = self._room if now < self._no_room_until else self._most
        wanted = min(math.ceil(min(needed, _MOST_PER_BUSY * n_serving)), most)
        if wanted <= self.n_workers:
            return ""
        self._change(wanted, True, now)
        # Whether these are too many is seen when they serve.
        self._loads.clear()
        return f"students wait {waited:.0%} of the time, workers are busy {n_busy / n_serving:.0%}"

    def _shrink(self, now: float) -> str:
        loads = list(self._loads)
        ends = range(_N_AVERAGE, _N_IDLE + 1)
        n_busy = max(_busy(loads[end - _N_AVERAGE : end]) for end in ends)
        wanted = max(math.ceil(_MOST_PER_BUSY * n_busy), self._least)
        if wanted >= self.n_workers or not self._may_shrink(now):
            return ""
        self._change(wanted, False, now)
        wait = (
            "wait for something else"
            if _waited(loads[-1:]) > _WAITS or _is_silent(loads[-1])
            else "do not wait"
        )
        return f"workers are busy {n_busy / loads[-1].n_serving:.0%} of the time, students {wait}"

    def _may_shrink(self, now: float) -> bool:
        is_spent = len(self._reversed_at) == _MAX_REVERSALS and now - self._reversed_at[0] < _REVERSALS_S
        return not (self._is_growing and is_spent)

    def _change(self, n_workers: int, is_growing: bool, now: float) -> None:
        if self._is_growing not in (None, is_growing):
            self._reversed_at.append(now)
        self.n_workers, self._is_growing = n_workers, is_growing


def _busy(loads: Sequence[Load]) -> float:
    return sum(load.n_busy for load in loads) / len(loads)


def _is_silent(load: Load) -> bool:
    """Return whether students wait and none has got anything, as while calls last longer than the time between looks."""
    return not any(samples > 0 for samples, _ in load.students) and any(
        waited > _WAITS for _, waited in load.students
    )


def _waited(loads: Sequence[Load]) -> float:
    """Return the share of samples that students lack: of those which they would take if they never waited.

    A student that has got nothing tells nothing: it may wait for what no worker makes, or for the first call of each.
    """
    got = sum(samples for load in loads for samples, _ in load.students)
    wanted = sum(
        samples / (1.0 - waited) if waited < 1.0 else math.inf
        for load in loads
        for samples, waited in load.students
        if samples > 0
    )
    return 1.0 - got / wanted if wanted > 0 else 0.0
