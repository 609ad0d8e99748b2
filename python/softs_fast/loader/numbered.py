"""Batches of a product by the numbers of their samples, for a caller that decides which numbers come next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate

from ..configs import BatchConfig
from ..market import ShmMedium, default_endpoint
from .endless import EndlessDataset
from .plan import IterationPlan
from .product.shared_id import SharedModelId
from .product.subscription import Stride
from .readers.copying import has_rows
from .sample_iterator import Reader, Stream
from .stream_options import StreamOptions

__all__ = ["NumberedBatches"]


class NumberedBatches:
    """Batches of one product, of the numbers at which it is aimed.

    It waits for samples as long as it takes, or until its caller does not want them any more. The cause of a wait is logged
    every 10 s.

    Args:
        product: Product to order; at most 256 bytes of UTF-8.
        batch_config: Config of the tensors that one sample holds.
        batch_size: Samples of a batch.
        num_slots: Samples on order or finished, at most; and samples of the batches that the caller has at once.
        endpoint: Frontend of the broker; None for that of the environment, as for `SoftIterableDataset`.

    Attributes:
        product: Product that is ordered now.

    Raises:
        ConfigError: `product` is no string or too long.
    """

    def __init__(
        self,
        product: str,
        batch_config: BatchConfig,
        batch_size: int,
        num_slots: int,
        endpoint: str | None = None,
    ) -> None:
        options = StreamOptions(
            num_slots=num_slots,
            retry_delay=0.01,
            request_timeout=None,
            zero_copy=False,
            ordered=True,
            prefetch=None,
            debug=False,
            rank=0,
            world_size=1,
            max_failures=_MAX_FAILURES,
        )
        self._source = source = SharedModelId(product)
        self._dataset = EndlessDataset(
            source, endpoint or default_endpoint("frontend"), batch_config, ShmMedium, options
        )
        self.product, self._version = product, source.version()
        self._batch_size = batch_size
        self._positions: dict[str, int] = {}
        self._plan = IterationPlan(
            batch_size=batch_size,
            make_batch=None if has_rows(batch_config) else default_collate,
            n_held=num_slots // batch_size,
        )
        self._opened: tuple[Stream, Reader] | None = None
        self._stride = Stride()

    def switch(self, product: str) -> None:
        """Go to another product; `aim` says to which of its numbers. What is on order is dropped.

        Raises:
            ConfigError: `product` is too long.
        """
        self._source.write(product)
        self.product, self._version, self._opened = product, self._source.version(), None

    def aim(self, start: int, run: int, stride: int) -> None:
        """Go to other numbers; what is finished or on order stays so, if it is among them.

        Sample i from now on has number start + i // run * stride + i % run. Samples that were copied into a part of a batch
        are made again.
        """
        self._opened, self._stride, self._positions = None, Stride(start, run, stride), {}

    def go_to(self, place: int) -> None:
        """Have the next batch begin at a place of the numbers, counted in samples; it may be there already."""
        if self._positions.get(self.product, 0) == place:
            return
        self._positions[self.product] = place
        if self._opened is not None:
            self._opened[0].restart()

    @property
    def kept(self) -> tuple[int, int]:
        """Samples that were finished or on order when it went to other numbers last, and were among these; and others."""
        opened = self._dataset._open
        return (0, 0) if opened is None else opened.subscription.last_seek

    def take(self, is_over: Callable[[], bool]) -> Any | None:
        """Return the next batch, `{name: dtype [batch_size, *shape]}`; None if it is not wanted any more before.

        Args:
            is_over: Function that returns whether the batch is not wanted any more; asked some times a second.

        Raises:
            GeneratorFailed: The next sample cannot be made.
            WireError: A sample is not what a codec of the config writes.
        """
        if self._opened is None:
            self._opened = self._dataset.begin(self._plan, self._positions, self._stride)
            self._opened[0].restart()
        stream, reader = self._opened
        # Its caller is busy with each batch for some time.
        taken = stream.take_of(self._version, reader, is_over, begins_next=True)
        return None if taken is None else taken[1]

    def close(self) -> None:
        """Close the client; a later batch opens a new one. Idempotent."""
        self._opened = None
        self._dataset.close()


#: Orders that fail in a row until a sample counts as one that cannot be made: each has failed at several suppliers.
_MAX_FAILURES = 3
