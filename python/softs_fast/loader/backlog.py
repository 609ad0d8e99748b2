"""Keeps workers of a DataLoader from running ahead of each other while their batches must come in order."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable

from torch.utils.data import get_worker_info

__all__ = ["Backlog", "trainer_died"]

#: So many batches of one worker may wait in the trainer for those of another one.
MAX_WAITING = 2


class Backlog:
    """How many batches of each worker wait in the trainer for their turn, in memory that all of them share.

    Args:
        n_workers: how many there are.
    """

    def __init__(self, n_workers: int) -> None:
        self._counts = multiprocessing.RawArray("i", n_workers)

    def set(self, counts: Iterable[int]) -> None:
        """Say how many there are, as the trainer."""
        self._counts[:] = list(counts)

    def clear(self) -> None:
        """Let all workers go on: nobody takes batches any more, or somebody begins anew."""
        self.set([0] * len(self._counts))

    def wait(self, worker: int) -> None:
        """Come back when the trainer has use for another batch of this worker, or has died."""
        while self._counts[worker] >= MAX_WAITING and not trainer_died():
            time.sleep(_LOOK_S)


def trainer_died() -> bool:
    """Return whether this is a DataLoader worker whose parent is gone: nobody will take another sample."""
    parent = multiprocessing.parent_process()
    return get_worker_info() is not None and parent is not None and not parent.is_alive()


_LOOK_S = 0.001
