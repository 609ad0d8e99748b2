"""Which sample numbers each step of a job owns, and which of them each rank takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

__all__ = ["Ledger", "share"]


@dataclass(frozen=True)
class Ledger:
    """The numbers of all steps: a function of the step alone, whatever ranks there are or were.

    Attributes:
        product: Product of the samples of the first step.
        global_batch_size: Samples of a step, over all ranks.
        micro_batch_size: Samples of a micro-batch, which one rank trains on at once.
        switches: Other products, each with the number of steps after which it begins, in increasing order.

    Raises:
        ConfigError: a size is below 1, micro-batches do not make up a global batch, or the switches are not in order.
    """

    product: str
    global_batch_size: int
    micro_batch_size: int
    switches: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        """Check sizes and switches."""
        steps = [0, *(step for step, _ in self.switches)]
        if steps != sorted(set(steps)):
            raise ConfigError(
                f"switches must be after 1 step or more, each later than the one before, got {steps[1:]}"
            )
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

    def product_of(self, step: int) -> str:
        """Return the product of a step; steps count from 0."""
        product = self.product
        for begin, other in self.switches:
            if begin <= step:
                product = other
        return product

    def numbers(self, step: int) -> range:
        """Return the numbers that a step owns, those of its product; a product goes on where its last step ended."""
        if not self.switches:
            place = step
        else:
            begins = [0, *(begin for begin, _ in self.switches)]
            products = [self.product, *(product for _, product in self.switches)]
            own = self.product_of(step)
            # Steps before this one of the same product.
            ends = [min(end, step) for end in (*begins[1:], step)]
            spans = zip(begins, ends, products, strict=True)
            place = sum(max(end - begin, 0) for begin, end, product in spans if product == own)
        return range(place * self.global_batch_size, (place + 1) * self.global_batch_size)


def share(n_micro_batches: int, rank: int, size: int) -> range:
    """Return the micro-batches of a step that a rank takes: neighbours, in the order of the ranks.

    Args:
        n_micro_batches: Micro-batches of a step.
        rank: Rank.
        size: Number of ranks; of more ranks than micro-batches some take none.
    """
    return range(rank * n_micro_batches // size, (rank + 1) * n_micro_batches // size)
