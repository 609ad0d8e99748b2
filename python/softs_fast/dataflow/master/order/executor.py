"""A worker's side of the order: steps strictly by ticket."""

from __future__ import annotations

from collections import deque
from typing import Generic, Literal, Protocol, TypeVar

from .steps import Abort

__all__ = ["Executor"]

#: Tickets, and calls that have failed, which are remembered. A worker has a few steps that have not ended, so what is
#: older than the last of these belongs to none of them.
_MOST_KNOWN = 1024


class _Ticketed(Protocol):
    """What tells a worker to run a step: a step, or a message."""

    @property
    def ticket(self) -> int:
        """Place in the order."""

    @property
    def call(self) -> int:
        """Number of the call."""


_Task = TypeVar("_Task", bound=_Ticketed)


class Executor(Generic[_Task]):
    """Which step a worker runs next. It begins one when the one before has ended, and never out of order.

    Each message is known by what it is about: a task by its ticket. So one that arrives twice counts once.
    """

    def __init__(self) -> None:
        #: The last tickets that have arrived; they grow.
        self._known: deque[int] = deque(maxlen=_MOST_KNOWN)
        self._queue: deque[_Task] = deque()
        self._inside: _Task | None = None
        #: The last calls of which a step has failed here.
        self._failed: deque[int] = deque(maxlen=_MOST_KNOWN)

    @property
    def inside(self) -> _Task | None:
        """The step that is running."""
        return self._inside

    @property
    def waiting(self) -> int:
        """How many steps are waiting."""
        return len(self._queue)

    def receive(self, task: _Task) -> bool:
        """Take a task; returns False for one that was here before: it is dropped.

        Raises:
            ValueError: the ticket is new and does not follow those before it: the connection has lost or mixed messages.
        """
        if self._known and task.ticket <= self._known[-1]:
            if task.ticket in self._known or task.ticket < self._known[0]:
                return False
            raise ValueError(f"ticket {task.ticket} arrived after ticket {self._known[-1]}")
        self._known.append(task.ticket)
        self._queue.append(task)
        return True

    def enter(self) -> _Task | None:
        """Return the step that begins now; None if one is running or none waits."""
        if self._inside is not None or not self._queue:
            return None
        self._inside = self._queue.popleft()
        return self._inside

    def leave(self) -> _Task:
        """The step that was running has ended; returns it.

        Raises:
            ValueError: none was running.
        """
        if self._inside is None:
            raise ValueError("no step is running")
        task, self._inside = self._inside, None
        return task

    def fail(self, call: int) -> None:
        """A step of a call has failed here. So the call has, and the master aborts the others of its steps."""
        self._failed.append(call)

    def is_void(self, task: _Task) -> bool:
        """Return whether a step of the same call has failed here, so that this one must not run.

        The abort may come too late: this one may be entered before.
        """
        return task.call in self._failed

    def abort(self, abort: Abort) -> Literal["inside", "skipped", "gone"]:
        """Take an abort.

        Returns:
            "inside": the step is running, and the caller has it return; "skipped": it will not run, and the caller
            reports that; "gone": it has ended, or was skipped before.
        """
        if self._inside is not None and self._inside.ticket == abort.ticket:
            return "inside"
        for task in self._queue:
            if task.ticket == abort.ticket:
                self._queue.remove(task)
                return "skipped"
        return "gone"
