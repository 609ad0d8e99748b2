"""What sums over ranks need of the ranks along one dimension of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["RankGroup"]


class RankGroup(Protocol):
    """The ranks of a role along one dimension; each calls the same methods in the same order.

    Attributes:
        size: how many there are.
    """

    size: int

    def check(self, what: str, flags: Sequence[bool] = ()) -> list[bool]:
        """Check that all ranks are about to do the same.

        Args:
            what: in words.
            flags: as many on each rank, if `what` is the same.

        Returns:
            For each flag whether it is set on any rank.

        Raises:
            FlowError: another rank does something else.
        """

    def sum(self, parts: Sequence[Tensor], divisor: int) -> list[Tensor]:
        """Return the sums over all ranks, in their order, divided by a number.

        Args:
            parts: one dimension each, of a number of elements that `size` divides, contiguous; they may be overwritten.
                Shapes and dtypes are the same on all ranks.
            divisor: see `sum_in_order`.
        """

    def from_first(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of rank 0; `parts` as in `sum`."""
