"""What a loader counts: samples, and how long the training waited for them."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["IteratorCounts", "LoaderStats", "StatsRecorder"]


class LoaderStats(NamedTuple):
    """What a loader has handed out in this process, and how long its caller waited for it.

    Attributes:
        n_batches: batches handed out.
        n_samples: samples in them.
        waiting_s: seconds from requests to batches, the copies of the loader included.
        working_s: seconds from batches to the next requests, in which the caller trains.
    """

    n_batches: int = 0
    n_samples: int = 0
    waiting_s: float = 0.0
    working_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples per second of waiting and working; 0 before there is any."""
        total_s = self.waiting_s + self.working_s
        return self.n_samples / total_s if total_s else 0.0

    @property
    def waiting_share(self) -> float:
        """The share of the time in which the caller waited, 0 to 1."""
        total_s = self.waiting_s + self.working_s
        return self.waiting_s / total_s if total_s else 0.0

    @property
    def bound(self) -> Literal["producer", "consumer"]:
        """The side that limits the rate: more workers help where it is the producer.

        It is the producer if the caller waited for more than a tenth of the time.
        """
        return "producer" if self.waiting_share > _WAITS else "consumer"

    def since(self, earlier: LoaderStats) -> LoaderStats:
        """Return what came after other statistics of the same loader."""
        return LoaderStats(
            self.n_batches - earlier.n_batches,
            self.n_samples - earlier.n_samples,
            self.waiting_s - earlier.waiting_s,
            self.working_s - earlier.working_s,
        )


class IteratorCounts:
    """What one iterator has handed out.

    Attributes:
        n_batches: Batches handed out.
        waiting_s: Seconds in calls of the iterator.
        began_at: Time at which the first call began, seconds; 0 before it.
        returned_at: Time at which the last call ended, seconds.
    """

    __slots__ = ("began_at", "n_batches", "returned_at", "waiting_s")

    def __init__(self) -> None:
        self.n_batches = 0
        self.waiting_s = self.began_at = self.returned_at = 0.0


class StatsRecorder:
    """Sums up what the iterators of a loader hand out. Each has counts of its own: a sum under a lock costs more."""

    def __init__(self) -> None:
        self._counts: list[IteratorCounts] = []

    def __reduce__(self) -> tuple[type[StatsRecorder], tuple[()]]:
        """Let each process count what it hands out itself."""
        return StatsRecorder, ()

    def new_counts(self) -> IteratorCounts:
        """Return the counts of another iterator."""
        self._counts.append(IteratorCounts())
        return self._counts[-1]

    def total(self, n_rows: int) -> LoaderStats:
        """Return what all iterators have handed out so far, in batches of n_rows."""
        counts = list(self._counts)
        n_batches = sum(one.n_batches for one in counts)
        waiting_s = sum(one.waiting_s for one in counts)
        total_s = sum(one.returned_at - one.began_at for one in counts)
        return LoaderStats(n_batches, n_batches * n_rows, waiting_s, max(0.0, total_s - waiting_s))


#: A smaller share than this is the copying.
_WAITS = 0.1
