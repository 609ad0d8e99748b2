"""One thread for each worker; the caller's thread says which of them runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import FlowError
from .random_numbers import ProcessGenerators
from .turns import Turns

__all__ = ["Ended", "LockstepThreads"]

#: One wait for a worker; it only bounds how late an end by Ctrl-C is.
_SLICE_S = 0.5


@dataclass(frozen=True)
class Ended:
    """How the part of a worker in a step has ended.

    Attributes:
        value: what it has returned.
        error: what it has raised; None if it has returned.
        was_stuck: whether it has waited in vain, so that another worker is the cause of its error.
    """

    value: Any = None
    error: BaseException | None = None
    was_stuck: bool = False


@dataclass
class _Worker:
    """A thread and what passes between it and the caller's."""

    number: int
    thread: threading.Thread | None = None
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    task: Callable[[], Any] | None = None
    value: Any = None
    error: BaseException | None = None
    has_ended: bool = False
    #: Why it has to leave what it waits in.
    stuck: str | None = None
    was_stuck: bool = False


class LockstepThreads:
    """Runs parts of workers, each in a thread of its own, one at a time; random numbers of a process are of the worker.

    What torch keeps for each thread, such as gradient modes, stays with a worker: its thread lives as long as this.

    Args:
        workers: their numbers.
    """

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = {number: _Worker(number) for number in workers}
        self._back = threading.Semaphore(0)
        self._turns = Turns(())
        self._has_failed: Callable[[Any], bool] = bool
        self._generators = ProcessGenerators()
        self._inside: int | None = None
        self._is_closing = False
        for one in self._workers.values():
            one.thread = threading.Thread(
                target=self._serve, args=(one,), name=f"softs-flow-{one.number}", daemon=True
            )
            one.thread.start()

    def run(
        self,
        parts: Mapping[int, Callable[[], Any]],
        has_failed: Callable[[Any], bool] = lambda value: False,
    ) -> dict[int, Ended]:
        """Run the parts of some workers in a step, until all have ended.

        If all that are left wait, each of them gets a `FlowError` there.

        Args:
            parts: by worker.
            has_failed: whether what a part has returned says that it has failed.

        Raises:
            FlowError: a step before was interrupted, and a worker is inside of it.
        """
        if self._inside is not None:
            raise FlowError(
                f"a step was interrupted, and worker {self._inside} is inside of it: the flow cannot go on"
            )
        self._turns, self._has_failed = Turns(parts), has_failed
        for number, task in parts.items():
            one = self._workers[number]
            one.task, one.value, one.error, one.has_ended, one.was_stuck = task, None, None, False, False
        while not all(self._workers[number].has_ended for number in parts):
            worker = self._turns.next()
            if worker is None:
                self._free_stuck()
            else:
                self._give(self._workers[worker])
        self._generators.switch(None)
        return {
            number: Ended(one.value, one.error, one.was_stuck)
            for number, one in self._workers.items()
            if number in parts
        }

    def wait(self, worker: int, what: str) -> None:
        """Have others run until one of them wakes this worker; called in its thread.

        Args:
            worker: its number.
            what: it waits in, in words.

        Raises:
            FlowError: no other worker can go on.
        """
        if self._is_closing:
            raise FlowError("the flow has ended")
        one = self._workers[worker]
        self._turns.wait(worker, what)
        self._back.release()
        one.go.acquire()
        if self._is_closing:
            raise FlowError("the flow has ended")
        stuck, one.stuck = one.stuck, None
        if stuck is not None:
            one.was_stuck = True
            raise FlowError(stuck)

    @property
    def is_interrupted(self) -> bool:
        """Whether `run` has raised while a worker was inside of its part, as by Ctrl-C."""
        return self._inside is not None

    def wake(self, worker: int) -> None:
        """Have a worker go on, when it is its turn; nothing happens if it does not wait."""
        self._turns.wake(worker)

    def close(self) -> None:
        """End all threads; idempotent. One that is inside of a function ends when that returns, or waits."""
        self._is_closing = True
        for one in self._workers.values():
            one.go.release()
        for one in self._workers.values():
            assert one.thread is not None
            one.thread.join()
        self._generators.clear()

    def _free_stuck(self) -> None:
        reasons = {number: self._turns.why_stuck(number) for number in self._turns.waiting}
        for number, reason in reasons.items():
            self._workers[number].stuck = reason
            self._turns.wake(number)

    def _give(self, one: _Worker) -> None:
        self._generators.switch(one.number)
        self._inside = one.number
        one.go.release()
        while not self._back.acquire(timeout=_SLICE_S):
            pass
        self._inside = None

    def _serve(self, one: _Worker) -> None:
        while True:
            one.go.acquire()
            if self._is_closing:
                return
            assert one.task is not None
            try:
                one.value = one.task()
            except BaseException as error:
                one.error = error
            one.task, one.has_ended = None, True
            if self._is_closing:
                return
            self._turns.end(one.number, failed=one.error is not None or self._has_failed(one.value))
            self._back.release()
