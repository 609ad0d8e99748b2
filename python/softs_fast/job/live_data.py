"""The samples of a job: a product of a running market, and in which portions it is trained on."""

from __future__ import annotations

from collections.abc import Mapping

from ..configs import BatchConfig
from ..errors import ConfigError
from ..loader import NumberedBatches, whole_number
from .ledger import Ledger

__all__ = ["LiveData"]


class LiveData:
    """The samples of a product, made while a job trains on them; in batches of one size on any number of ranks.

    Args:
        product: Product that suppliers make; at most 256 bytes of UTF-8.
        config: Config of the tensors that one sample holds.
        global_batch_size: Samples of a step, over all ranks.
        micro_batch_size: Samples that one rank trains on at once; a global batch is some of these.
        endpoint: Frontend of the broker; None for that of the environment, as in a process of ``softs-fast run``.
        switches: Products by the number of steps after which they take the place of the one before, such as ``{200: "2"}``.
            Each product has numbers of its own, and goes on with them when it comes again.

    Raises:
        ConfigError: A size is out of range, or micro-batches do not make up a global batch; or a product is no string or
            too long, or `switches` is not of whole numbers above 0.

    Example:
        >>> import softs_fast as sf
        >>> config = sf.BatchConfig([sf.TensorSpec("x", (8,), "float32")])
        >>> data = sf.LiveData("1", config, global_batch_size=96, micro_batch_size=8)
    """

    def __init__(
        self,
        product: str,
        config: BatchConfig,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        endpoint: str | None = None,
        switches: Mapping[int, str] | None = None,
    ) -> None:
        if not isinstance(config, BatchConfig):
            raise ConfigError(f"config must be a BatchConfig, got {type(config).__name__}")
        later = sorted(
            (whole_number("a key of switches", step, 1), other) for step, other in (switches or {}).items()
        )
        for other in (product, *(other for _, other in later)):
            if not isinstance(other, str):
                raise ConfigError(f"product must be a string, got {type(other).__name__}")
        self.global_batch_size = whole_number("global_batch_size", global_batch_size, 1)
        self.micro_batch_size = whole_number("micro_batch_size", micro_batch_size, 1)
        self.config = config
        self.ledger = Ledger(product, self.global_batch_size, self.micro_batch_size, tuple(later))
        self._source = (product, config, self.micro_batch_size, self.global_batch_size, endpoint)
        # They check the products.
        batches = self.batches()
        for _, other in later:
            batches.switch(other)

    def batches(self) -> NumberedBatches:
        """Return a stream of its own of the samples; none is ordered before the first batch."""
        # As many on order as a step has: one rank alone has its next step made while it trains.
        return NumberedBatches(*self._source)
