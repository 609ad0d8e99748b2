"""Which checkpoints are complete: only those of which each member of one epoch has written its part."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .events import Completed

# Checkpoints that members may be writing at once.
_MOST_OPEN = 16
# Complete ones that are remembered, in case that later ones turn out to be damaged.
_MOST_COMPLETE = 8


@dataclass
class Checkpoints:
    """Of a job.

    Attributes:
        complete: the last complete ones, in their order.
        open: seats that have not written their part yet, by step and path.
    """

    complete: deque[Completed] = field(default_factory=lambda: deque(maxlen=_MOST_COMPLETE))
    open: dict[tuple[int, str], set[int]] = field(default_factory=dict)

    @property
    def last(self) -> Completed | None:
        """The last complete one."""
        return self.complete[-1] if self.complete else None

    def begin(self, step: int, path: str, members: Iterable[int]) -> str:
        """Note that a member begins; return why it cannot, or an empty text."""
        if (step, path) not in self.open:
            if len(self.open) >= _MOST_OPEN:
                return f"{_MOST_OPEN} checkpoints are being written already"
            self.open[step, path] = set(members)
        return ""

    def end(self, epoch: int, step: int, path: str, seat: int) -> Completed | None:
        """Note that a member has written its part; return the checkpoint if that makes it complete."""
        missing = self.open.get((step, path))
        if missing is None:
            return None
        missing.discard(seat)
        if missing:
            return None
        del self.open[step, path]
        completed = Completed(epoch, step, path)
        if self.last is None or step >= self.last.step:
            self.complete.append(completed)
        return completed

    def drop(self, step: int, path: str) -> bool:
        """Take a damaged one for incomplete, and return whether there is another one; the only one is kept."""
        others = [one for one in self.complete if (one.step, one.path) != (step, path)]
        if not others:
            return False
        self.complete = deque(others, _MOST_COMPLETE)
        return True

    def abort(self) -> list[tuple[int, str]]:
        """Drop those that are not complete; return their steps and paths."""
        dropped = sorted(self.open)
        self.open.clear()
        return dropped
