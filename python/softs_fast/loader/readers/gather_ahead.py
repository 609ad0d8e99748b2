"""Batches that native threads gather ahead of the caller."""

from __future__ import annotations

from collections import deque

from ...configs import BatchConfig
from ...market import Client
from ..plan import IterationPlan
from .batch_memory import BatchMemory, Tensors

__all__ = ["GatherAheadReader"]


class GatherAheadReader:
    """Keeps a queue of batches that native threads fill in order, while the caller works with earlier ones.

    Args:
        config: Config of the tensors that a slot holds; one for which `has_rows` is true.
        client: Client that has the slots, in a segment.
        plan: Samples per batch, threads that copy, batches in the queue, and whether these are pinned. Samples are
            taken in order for any number of threads.
    """

    #: The user gets copies, so there are always slots for more.
    is_starved = False

    def __init__(self, config: BatchConfig, client: Client, plan: IterationPlan) -> None:
        assert plan.batch_size is not None
        self.n_rows = n_rows = plan.batch_size
        self._client = client
        self._pipeline = client.gather_pipeline(plan.n_threads)
        # Each is lent to one batch of the queue at a time.
        self._free = deque(BatchMemory(config, n_rows, plan.pins) for _ in range(plan.n_ahead))
        self._queue: deque[BatchMemory] = deque()
        self._is_complete = False
        # Samples that the client has handed out, when they were counted last.
        self._taken = 0

    def begin(self, product_id: str) -> None:
        """Nothing: the queue is filled in any case."""

    def forget(self) -> None:
        """Drop what was gathered and not handed out."""
        self._pipeline.take_back()
        self._free.extend(self._queue)
        self._queue.clear()
        self._is_complete = False

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        """Wait up to timeout_ms for the oldest batch of the queue.

        Returns:
            `n_rows` if it is complete; else `done` if no sample came, and another number if samples came.

        Raises:
            WireError: a sample is not what a codec writes.
            SegmentError: the client is closed.
        """
        if self._pipeline.has_ended and not self._is_complete:
            # Batches before a failure are handed out, and the failure is raised, before the queue is dropped.
            self._is_complete = self._pipeline.wait(0)
            if not self._is_complete:
                self.forget()
        while self._free:
            memory = self._free[0]
            self._pipeline.submit(product_id, self.n_rows, memory.lend())
            self._queue.append(self._free.popleft())
        self._is_complete = self._is_complete or self._pipeline.wait(timeout_ms)
        if self._is_complete:
            return self.n_rows
        self._client.maintain()
        taken = self._client.position(product_id)
        has_progress, self._taken = taken != self._taken, taken
        return 1 - done if has_progress and self.n_rows > 1 else done

    def take(self) -> Tensors:
        """Hand out the oldest batch, `{name: dtype [n_rows, *shape]}`; it must be complete."""
        memory = self._queue.popleft()
        self._free.append(memory)
        self._is_complete = False
        return memory.take()
