"""What a plan consists of: transfers of rows between workers, and the list of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .slices import Integers

__all__ = ["RedistributionPlan", "Transfer", "WorkerMoves"]


@dataclass(frozen=True, eq=False)
class Transfer:
    """Rows of a column that one worker has from another one.

    Attributes:
        source: the worker that holds them.
        target: the worker that gets them.
        column: their column.
        ids: int64 [rows], in the order of the slice.
        n_bytes: of their values.
    """

    source: int
    target: int
    column: str
    ids: Integers
    n_bytes: int

    def as_wire(self) -> list[Any]:
        """Return it as plain types."""
        return [self.source, self.target, self.column, self.ids.tolist(), self.n_bytes]


@dataclass(frozen=True)
class WorkerMoves:
    """The part of one worker; its size does not depend on the number of workers.

    Attributes:
        sends: to workers of other nodes, those that follow this one in the order of numbers first, so that workers begin
            with different receivers.
        receives: from workers of other nodes. These are posted before anything is sent.
        reads: from stores of the own node, once the receives of their sources are complete; nothing is sent for them.
    """

    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()
    reads: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class RedistributionPlan:
    """How the rows of a call get to its workers.

    Attributes:
        slices: int64 ids of the rows of each dp rank, in the order of the call.
        workers: what each worker does; those without a part are left out.
        tokens: of each slice.
        n_bytes: between nodes.
        least_bytes: between nodes in any plan with these slices, whichever rank gets which.
        read_bytes: that workers copy from stores of their own node.
        busiest: the worker that sends most between nodes; -1 if none sends.
        busiest_bytes: what it sends.
        bound: the least that the busiest sender has in any plan with these slices in which holders alone send.
        largest_row: bytes of the largest value that is sent; `busiest_bytes` is at most the sum of both.
        predicted_s: expected time, from rates.
    """

    slices: tuple[Integers, ...]
    workers: dict[int, WorkerMoves]
    tokens: tuple[int, ...]
    n_bytes: int
    least_bytes: int
    read_bytes: int
    busiest: int
    busiest_bytes: int
    bound: float
    largest_row: int
    predicted_s: float

    def of(self, worker: int) -> WorkerMoves:
        """Return the part of a worker."""
        return self.workers.get(worker, WorkerMoves())

    def explain(self) -> str:
        """Return the numbers of the plan as text, one line each."""
        sends = sum(len(one.sends) for one in self.workers.values())
        reads = sum(len(one.reads) for one in self.workers.values())
        sender = f"worker {self.busiest} sends {self.busiest_bytes} bytes" if sends else "none sends"
        return "\n".join(
            [
                f"slices: {_numbers([len(one) for one in self.slices])} rows; {_numbers(self.tokens)} tokens",
                f"between nodes: {self.n_bytes} bytes in {sends} transfers; least possible {self.least_bytes}",
                f"busiest sender: {sender}; bound {self.bound:.1f}, largest row {self.largest_row}",
                f"inside nodes: {self.read_bytes} bytes in {reads} reads",
                f"expected: {self.predicted_s * 1e3:.3f} ms",
            ]
        )


def _numbers(found: Sequence[int]) -> str:
    most = 8
    shown = " ".join(map(str, found[:most]))
    return shown if len(found) <= most else f"{shown} ... ({len(found)} slices, {min(found)} to {max(found)})"
