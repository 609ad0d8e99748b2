"""Which sample numbers each step of a job owns, and which of them each rank takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ..errors import ConfigError

__all__ = ["Ledger", "Segment", "share"]


@dataclass(frozen=True)
class Segment:
    """Steps of one product and one size, each of which owns the numbers after those of the step before.

    Attributes:
        first_step: First step of the segment; steps count from 0.
        product: Product of the samples.
        base: First number of the first step.
        global_batch_size: Samples of a step, over all ranks.
        micro_batch_size: Samples of a micro-batch, which one rank trains on at once.

    Raises:
        ConfigError: a size is below 1, or micro-batches do not make up a global batch.
    """

    first_step: int
    product: str
    base: int
    global_batch_size: int
    micro_batch_size: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        whole, part = self.global_batch_size, self.micro_batch_size
        if whole < 1 or part < 1 or whole % part:
            raise ConfigError(
                f"global_batch_size={whole} is no multiple of micro_batch_size={part}: a step has whole micro-batches only, "
                "so that each has the same samples on any number of ranks"
            )

    @property
    def n_micro_batches(self) -> int:
        """Micro-batches of a step, over all ranks."""
        return self.global_batch_size // self.micro_batch_size

    def base_of(self, step: int) -> int:
        """Return the first number of a step, as if the segment did not end before it."""
        return self.base + (step - self.first_step) * self.global_batch_size


@dataclass(frozen=True)
class Ledger:
    """The numbers of all steps: a function of the step alone, whatever ranks there are or were.

    Attributes:
        segments: Segments, by their first step; the first one begins with step 0.
        skipped: Numbers that no step trains, each with its product.
    """

    segments: tuple[Segment, ...]
    skipped: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, product: str, global_batch_size: int, micro_batch_size: int) -> Self:
        """Return the ledger of a job that begins.

        Raises:
            ConfigError: as for `Segment`.
        """
        return cls((Segment(0, product, 0, global_batch_size, micro_batch_size),))

    def segment(self, step: int) -> Segment:
        """Return the segment of a step."""
        return next(one for one in reversed(self.segments) if one.first_step <= step)

    def numbers(self, step: int) -> range:
        """Return the numbers that a step owns."""
        segment = self.segment(step)
        base = segment.base_of(step)
        return range(base, base + segment.global_batch_size)

    def trained(self, step: int) -> list[int]:
        """Return the numbers that a step trains: those that it owns and that are not skipped."""
        product = self.segment(step).product
        return [number for number in self.numbers(step) if (product, number) not in self.skipped]

    def switched(self, step: int, product: str) -> Ledger:
        """Return the ledger with another product from a step on, which goes on where that product was left.

        Args:
            step: First step of the product; the last segment may not begin after it.
            product: Product of this step and of those after it.
        """
        ends = [*(one.first_step for one in self.segments[1:]), step]
        used = [
            one.base_of(end)
            for one, end in zip(self.segments, ends, strict=True)
            if one.product == product and end > one.first_step
        ]
        last = self.segments[-1]
        new = replace(last, first_step=step, product=product, base=max(used, default=0))
        return replace(self, segments=(*(one for one in self.segments if one.first_step < step), new))

    def without(self, step: int, number: int) -> Ledger:
        """Return the ledger in which a number of a step is skipped."""
        return replace(self, skipped=tuple(sorted({*self.skipped, (self.segment(step).product, number)})))

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        segments = [
            [one.first_step, one.product, one.base, one.global_batch_size, one.micro_batch_size]
            for one in self.segments
        ]
        return {"segments": segments, "skipped": [list(one) for one in self.skipped]}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the ledger that `state_dict` described.

        Raises:
            ConfigError: as for `Segment`.
        """
        skipped = tuple((product, number) for product, number in state["skipped"])
        return cls(tuple(Segment(*one) for one in state["segments"]), skipped)


def share(n_micro_batches: int, rank: int, size: int) -> range:
    """Return the micro-batches of a step that a rank takes: neighbours, in the order of the ranks.

    Args:
        n_micro_batches: Micro-batches of a step.
        rank: Rank.
        size: Number of ranks; of more ranks than micro-batches some take none.
    """
    return range(rank * n_micro_batches // size, (rank + 1) * n_micro_batches // size)
