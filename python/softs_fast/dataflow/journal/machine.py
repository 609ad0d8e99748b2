"""When a common save begins, counts or is dropped, how far training may go, and whether a flow goes back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Move", "SaveMachine", "Seen"]


class Move(Enum):
    """What is to be done: begin a save of all steps that are complete, take back what of it has no tickets yet, have it
    count, drop it, or drop it and end the flow with its error.
    """

    BEGIN = auto()
    WITHDRAW = auto()
    COMMIT = auto()
    DROP = auto()
    FAIL = auto()


@dataclass(frozen=True)
class Seen:
    """What is seen of a flow, and of the save that was begun.

    Attributes:
        complete: Number of steps that are complete.
        yielded: Number of steps that were yielded.
        is_whole: Whether no worker is awaited.
        is_idle: Whether no step has a ticket.
        is_placed: Whether all that workers do for the save has tickets.
        is_disturbed: Whether a worker was lost since the save was begun.
        is_over: Whether the call in which workers write has its answer.
        has_failed: Whether that is an error.
        has_rows: Whether what functions had made is written.
    """

    complete: int
    yielded: int
    is_whole: bool = True
    is_idle: bool = False
    is_placed: bool = False
    is_disturbed: bool = False
    is_over: bool = False
    has_failed: bool = False
    has_rows: bool = True


class SaveMachine:
    """Decides over the common saves of a flow.

    A save is begun when a step of `save_every` is complete, and has all of it and nothing of later ones: training goes no
    further before the save has its tickets, and before the first save counts. It counts when all workers have written,
    its step was yielded, and no worker was lost meanwhile. So each save that counts is one of a moment between two steps,
    and a flow that goes back to it yields each later step again, and no other one.

    Args:
        save_every: Steps from one save to the next.
        max_restarts: Times that a flow may go back without a save in between.

    Attributes:
        hold: Number of steps that training may complete; at that number a save is due.
        last: Step of the save that counts; None: there is none.
        begun: Step of the save that was begun; None: there is none.
        n_restarts: Times that the flow has gone back since the last save.
    """

    def __init__(self, save_every: int, max_restarts: int) -> None:
        self.hold = 0
        self.last: int | None = None
        self.begun: int | None = None
        self.n_restarts = 0
        self._save_every, self._max_restarts = save_every, max_restarts

    def goes_on(self, last: int | None) -> None:
        """The flow goes on from a save of this step, or begins; nothing that was begun counts."""
        self.last, self.begun = last, None
        self.hold = 0 if last is None else self._after(last)

    def move(self, seen: Seen) -> Move | None:
        """Return what is to be done; None: nothing yet. It counts as done by `has_begun`, `has_counted` or `was_dropped`."""
        if self.begun is None:
            return Move.BEGIN if seen.complete >= self.hold and seen.is_whole else None
        # Nothing trains before the first save counts: from then on a worker may be lost.
        if self.last is not None and seen.is_placed:
            self.hold = self._after(self.begun)
        if seen.is_disturbed:
            return Move.DROP if seen.is_over else Move.WITHDRAW
        if seen.has_failed:
            return Move.FAIL
        if not seen.is_over or seen.yielded < self.begun:
            return None
        # Rows are awaited only where nothing else can be done.
        may_wait = seen.complete >= self.hold or seen.is_idle
        return Move.COMMIT if seen.has_rows or may_wait else None

    def has_begun(self, step: int) -> None:
        """A save of a step was begun."""
        self.begun = step

    def has_counted(self) -> None:
        """The save that was begun counts."""
        assert self.begun is not None
        self.last, self.begun, self.n_restarts = self.begun, None, 0
        self.hold = self._after(self.last)

    def was_dropped(self) -> None:
        """The save that was begun never counts; the next one is that of a later step, unless there is none at all."""
        self.begun = None

    @property
    def may_go_back(self) -> bool:
        """Whether there is a save, and all workers may be started again."""
        return self.last is not None and self.n_restarts < self._max_restarts

    def goes_back(self) -> None:
        """All workers are started again, as one was lost."""
        self.n_restarts += 1

    def _after(self, step: int) -> int:
        return (step // self._save_every + 1) * self._save_every
