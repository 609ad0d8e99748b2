"""Which micro-batches a rank takes for a step, and where its stream of samples has to be."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .ledger import Ledger, share

__all__ = ["Aim", "Feed", "MicroBatch", "Phase"]

#: idle: between two steps; serving: micro-batches of a step are left; spent: none is left; settling: the epoch of the
#: step is over, and what becomes of the step is not known.
Phase = Literal["idle", "serving", "spent", "settling"]


class Aim(NamedTuple):
    """Numbers that a stream hands out: at place i number start + i // run * stride + i % run."""

    start: int
    run: int
    stride: int

    def number(self, place: int) -> int:
        """Return the number at a place."""
        return self.start + place // self.run * self.stride + place % self.run


class MicroBatch(NamedTuple):
    """A micro-batch of a step.

    Attributes:
        place: Its place in the step.
        numbers: Numbers of its samples.
    """

    place: int
    numbers: range


class Feed:
    """The machine of one rank: IDLE -> SERVING -> SPENT -> IDLE; SERVING, SPENT -> SETTLING -> IDLE.

    It keeps no position: each step says which numbers it owns, and the stream is aimed again if it is somewhere else. So
    numbers that were handed out for a step that was dropped are handed out again, on the rank that has them then.
    """

    def __init__(self) -> None:
        self.phase: Phase = "idle"
        #: Micro-batches of the step that are left.
        self._due: list[MicroBatch] = []
        # Where the stream is: of which product, what it hands out, and how many samples of that it has handed out.
        self._product = ""
        self._aim: Aim | None = None
        self._n_taken = 0

    @property
    def due(self) -> MicroBatch | None:
        """The micro-batch that comes next in this step; None if there is none."""
        return self._due[0] if self.phase == "serving" else None

    @property
    def place(self) -> int:
        """Where the stream must be for the micro-batch that is due: a place of its aim."""
        return self._n_taken

    @property
    def n_due(self) -> int:
        """Micro-batches of this rank that are left in the step."""
        return len(self._due)

    def begin(self, ledger: Ledger, step: int, rank: int, size: int) -> Aim | None:
        """Begin a step.

        Args:
            ledger: Ledger of the weights with which the step begins.
            step: Step, from 0.
            rank: Rank of this process in the epoch of the step.
            size: Number of ranks in the epoch of the step.

        Returns:
            Where the stream must go; None if it is there.
        """
        assert self.phase == "idle", f"a step begins while another one is {self.phase}"
        numbers = ledger.numbers(step)
        own = share(ledger.n_micro_batches, rank, size)
        n = ledger.micro_batch_size
        self._due = [MicroBatch(index, numbers[index * n : (index + 1) * n]) for index in own]
        self.phase = "serving" if self._due else "spent"
        if not self._due:
            return None
        aim = Aim(self._due[0].numbers.start, len(own) * n, ledger.global_batch_size)
        product = ledger.product_of(step)
        at = self._aim if product == self._product else None
        self._product = product
        # A run that was left in its midst would go on with numbers of another step.
        if (
            at is not None
            and at[1:] == aim[1:]
            and self._n_taken % at.run == 0
            and at.number(self._n_taken) == aim.start
        ):
            return None
        self._aim, self._n_taken = aim, 0
        return aim

    def took(self) -> MicroBatch:
        """Take the micro-batch that is due: the stream has handed it out."""
        assert self.phase == "serving", f"a micro-batch is taken while the step is {self.phase}"
        taken = self._due.pop(0)
        self._n_taken += len(taken.numbers)
        if not self._due:
            self.phase = "spent"
        return taken

    def fenced(self) -> None:
        """The epoch of the step is over: no micro-batch of it is handed out any more."""
        if self.phase in ("serving", "spent"):
            self.phase = "settling"

    def committed(self) -> None:
        """The step was applied, with all micro-batches of this rank."""
        assert self.phase in ("spent", "settling"), f"a step is committed that is {self.phase}"
        assert not self._due, f"a step is committed without micro-batches {self._due}"
        self.phase = "idle"

    def dropped(self) -> None:
        """The step was not applied; its numbers are due again."""
        assert self.phase != "idle", "a step is dropped, and none was begun"
        # What has ended a step may have come between a batch and `took`.
        self._due, self.phase, self._aim = [], "idle", None
