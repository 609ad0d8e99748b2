"""What all strategies have in common: their interface, the operations, and what they count."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class ReduceOp(StrEnum):
    """How the values of all ranks become one.

    SUM, MIN and MAX are for every dtype (MIN of bool is `and`, the others are `or`); integer sums wrap around. MEAN is the mean over all
    ranks, whatever node they are on; that of integers is truncated toward zero, and bool has none.
    """

    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class OpMetrics:
    """What one kind of operation has cost this rank so far.

    Attributes:
        count: calls.
        bytes: bytes of the tensors passed in; not the traffic.
        seconds: time spent in them.
        waiting_s: the part of it spent waiting for other ranks.
    """

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waiting_s: float = 0.0


@runtime_checkable
class Strategy(Protocol):
    """Collective operations over a fixed group of ranks.

    Every rank makes the same calls in the same order. A call returns when this rank's result is there; on CUDA devices, when it will be
    there in the order of the current stream. After `PeerLost` the contents of the tensors of that call are undefined, and every later call
    raises `PeerLost` too.
    """

    @property
    def rank(self) -> int:
        """This process's number, from 0 to `size - 1`."""

    @property
    def size(self) -> int:
        """Number of ranks; for a hierarchy, those of all nodes."""

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """What was done so far, by the name of the operation."""

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Meet the other ranks; returns itself. `rendezvous` is what the strategy's class says."""

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce `tensor`, of the same shape and dtype on every rank, in place."""

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors in place, matched by name; the order of the mapping does not matter."""

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce `tensor` [size * n] and put this rank's n elements of the result into `output` [n]."""

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the `tensor` [n] of every rank, one after another, into `output` [size * n]."""

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Make `tensor` on every rank what it is on rank `root`."""

    def barrier(self) -> None:
        """Return once every rank has called it."""

    def close(self) -> None:
        """Leave the group; a second call does nothing. `shutdown` is the same."""

    def shutdown(self) -> None:
        """Leave the group; a second call does nothing. `close` is the same."""
        self.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
