"""The interface of all strategies, their reductions, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class ReduceOp(StrEnum):
    """How the values of all ranks are combined.

    SUM, MIN and MAX are for every dtype (MIN of bool is `and`, the others are `or`); integer sums wrap around. MEAN is
    the mean over all ranks of all nodes; that of integers is truncated toward zero, and bool has none.
    """

    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class OpMetrics:
    """Sums of one kind of operation on this rank so far.

    Attributes:
        n_calls: Number of calls.
        bytes: bytes of the tensors passed in; not the traffic.
        seconds: time spent in the calls.
        waiting_s: the part of it spent waiting for other ranks.
        errors: calls that raised an exception; wrong arguments may be found before a call counts.
    """

    n_calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waiting_s: float = 0.0
    errors: int = 0


@runtime_checkable
class Strategy(Protocol):
    """Collective operations over a fixed group of ranks.

    Every rank makes the same calls in the same order. A call returns when this rank's result is complete; on CUDA
    devices, when it is submitted to the current stream. Every call raises

    * ConfigError if ranks differ in the call, its shape, dtype, operation or names, or an argument is unsuitable on one of
      them: on all ranks, nothing was moved, and the group is usable. Also if this rank has closed the group.
    * PeerLost if a rank died, stopped, was too late or left. The contents of the tensors of that call are undefined then,
      and every later call raises `PeerLost` too.
    * ForkedError in a fork of the process that joined the group.
    """

    @property
    def rank(self) -> int:
        """This process's number, from 0 to `size - 1`."""

    @property
    def size(self) -> int:
        """Number of ranks; for a hierarchy, those of all nodes."""

    @property
    def metrics(self) -> dict[str, OpMetrics]:
        """Metrics so far, by the name of the operation."""

    def init(self, rank: int, size: int, rendezvous: object) -> Self:
        """Join the group of all ranks; return self. The strategy's class documents `rendezvous`."""

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM) -> None:
        """Reduce a tensor over all ranks, in place.

        Args:
            tensor: Tensor of any shape, the same on every rank, of float64, float32, float16, bfloat16, int64, int32,
                int16, int8, uint8 or bool; 16-bit floats are summed in float32 unless the class says otherwise.
            op: The reduction.
        """

    def all_reduce_gradients(
        self, gradients: Mapping[str, torch.Tensor | None], op: ReduceOp | str = ReduceOp.MEAN
    ) -> None:
        """Reduce all tensors of a mapping, in place, matched by name; its order does not matter.

        Args:
            gradients: Tensors by name; the same names, shapes and dtypes on every rank. None for a parameter that has
                no gradient on any rank; if some ranks have one, all raise a ConfigError that names it.
            op: The reduction.
        """

    def reduce_scatter(
        self, output: torch.Tensor, tensor: torch.Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> None:
        """Reduce a tensor over all ranks; each rank gets one of `size` equal parts of the result.

        Args:
            output: Tensor [n] for this rank's part; must not overlap `tensor`.
            tensor: Tensor [size * n], of the same dtype.
            op: The reduction.
        """

    def all_gather(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        """Put the tensor of every rank, one after another, into `output`.

        Args:
            output: Tensor [size * n].
            tensor: Tensor [n] of the same dtype; may be this rank's part of `output`.
        """

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        """Copy a tensor of rank `root`, as for `all_reduce`, to every rank."""

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
