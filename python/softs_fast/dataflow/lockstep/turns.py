"""Which of several workers runs: one at a time, until it waits or ends, then the next one by number. No thread, no clock."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Turns"]


class Turns:
    """The workers of one step.

    Args:
        workers: their numbers; all can run.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._ready = sorted(workers)
        self._waiting: dict[int, str] = {}
        self._ended: dict[int, str] = {}
        self._last = -1

    def next(self) -> int | None:
        """Return the worker that runs now: after the one that ran before, the next number that can; None if none can."""
        if not self._ready:
            return None
        self._last = next((one for one in self._ready if one > self._last), self._ready[0])
        return self._last

    def wait(self, worker: int, what: str) -> None:
        """The worker that runs waits.

        Args:
            worker: its number.
            what: in words, for `why_stuck`.
        """
        self._ready.remove(worker)
        self._waiting[worker] = what

    def wake(self, worker: int) -> None:
        """A worker that waits can run."""
        if self._waiting.pop(worker, None) is not None:
            self._ready = sorted([*self._ready, worker])

    def end(self, worker: int, *, failed: bool) -> None:
        """The worker that runs has done its part."""
        self._ready.remove(worker)
        self._ended[worker] = "has failed" if failed else "has returned"

    @property
    def waiting(self) -> tuple[int, ...]:
        """Workers that wait."""
        return tuple(sorted(self._waiting))

    def why_stuck(self, worker: int) -> str:
        """Return in words why a worker waits in vain, when no worker can run."""
        others = {one: f"waits in {what}" for one, what in self._waiting.items()} | self._ended
        others.pop(worker)
        said = "; ".join(f"worker {one} {what}" for one, what in sorted(others.items()))
        return (
            f"worker {worker} waits in {self._waiting[worker]}, and no other worker can go on: {said or 'there is none'}; "
            "all ranks have to make the same calls"
        )
