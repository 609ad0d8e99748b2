"""What a loader counts: samples, and how long the training waited for them."""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple

from .fork_locks import renewed_in_forks

__all__ = ["LoaderStats", "StatsRecorder"]


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


class StatsRecorder:
    """Counts what the iterators of a loader hand out, in any thread."""

    def __init__(self) -> None:
        self._lock: threading.Lock
        renewed_in_forks(self, "_lock")
        self._stats = LoaderStats()

    def __reduce__(self) -> tuple[type[StatsRecorder], tuple[()]]:
        """Let each process count what it hands out itself."""
        return StatsRecorder, ()

    def add(self, n_samples: int, waiting_s: float, working_s: float) -> None:
        """Count a batch, how long its request waited, and how long the caller had worked before it."""
        with self._lock:
            n_batches, n_before, waited_s, worked_s = self._stats
            self._stats = LoaderStats(
                n_batches + 1, n_before + n_samples, waited_s + waiting_s, worked_s + working_s
            )

    def read(self) -> LoaderStats:
        """Return what was counted so far."""
        return self._stats


#: A smaller share than this is the copying.
_WAITS = 0.1
