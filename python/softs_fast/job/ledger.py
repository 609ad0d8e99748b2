"""Which sample numbers each step of a job owns, and which of them each rank takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["Ledger", "share"]


@dataclass(frozen=True)
class Ledger:
    """The numbers of all steps: a function of the step alone, whatever ranks there are or were.

    Attributes:
        product: Product of the samples.
        global_batch_size: Samples of a step, over all ranks.
        micro_batch_size: Samples of a micro-batch, which one rank trains on at once.

    Raises:
        ConfigError: a size is below 1, or micro-batches do not make up a global batch.
    """

    product: str
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

    def numbers(self, step: int) -> range:
        """Return the numbers that a step owns; steps count from 0."""
        return range(step * self.global_batch_size, (step + 1) * self.global_batch_size)


def share(n_micro_batches: int, rank: int, size: int) -> range:
    """Return the micro-batches of a step that a rank takes: neighbours, in the order of the ranks.

    Args:
        n_micro_batches: Micro-batches of a step.
        rank: Rank.
        size: Number of ranks; of more ranks than micro-batches some take none.
    """
    return range(rank * n_micro_batches // size, (rank + 1) * n_micro_batches // size)
