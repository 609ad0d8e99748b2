"""What sums over ranks need of the ranks along one dimension of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

__all__ = ["RankGroup"]


class RankGroup(Protocol):
    """The ranks of a role along one dimension; each calls the same methods in the same order.

    What a call is about, in words, has to be the same on all ranks, and is checked before anything else is sent.

    Attributes:
        size: how many there are.
    """

    size: int

    def any(self, what: str, flags: Sequence[bool] = ()) -> list[bool]:
        """Return for each flag whether it is set on any rank.

        Args:
            what: in words.
            flags: as many on each rank, if `what` is the same.

        Raises:
            FlowError: another rank does something else.
        """

    def sum(self, parts: Sequence[Tensor], divisor: int, what: str | None = None) -> list[Tensor]:
        """Return the sums over all ranks, in their order, divided by a number.

        Args:
            parts: one dimension each, of a number of elements that `size` divides, contiguous; they may be overwritten.
                Shapes and dtypes are the same on all ranks.
            divisor: see `sum_in_order`.
            what: in words; None: a call just before was about the same.

        Raises:
            FlowError: another rank does something else.
        """

    def from_first(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of rank 0; `parts` as in `sum`, and a call just before was about the same."""
