"""The endless dataset of the samples of one product, which `set_model` changes."""

from __future__ import annotations

from collections.abc import Callable

from ..configs import BatchConfig
from ..market import Medium, ShmMedium, default_endpoint
from .arguments import accepts_0_1_0
from .endless import EndlessDataset
from .product.shared_id import SharedModelId
from .stream_options import StreamOptions

__all__ = ["SoftIterableDataset"]


class SoftIterableDataset(EndlessDataset):
    """Endless dataset of samples, decoded to `{name: tensor}`.

    The client is opened by the process that iterates, so each DataLoader worker has its own, with `num_slots`
    slots.

    Args:
        model_id: Product to order; at most 256 bytes of UTF-8. `set_model` changes it for all workers.
        endpoint: Frontend of the broker; default: that of the environment (of a process that `Fleet` or
            ``softs-fast run`` has started), or else a path in /tmp.
        batch_config: Config of the tensors that one sample holds; required.
        medium_cls: How samples get here. With `CudaIpcMedium` they are tensors on its device.
        num_slots: Samples on order or finished, per worker.
        retry_delay: Seconds, the shortest time between two requests that got nothing.
        request_timeout: Seconds without a sample after which iteration raises, whatever it waits for: a broker, a
            supplier, or slots that the user holds. None waits for ever. Every 10 s the cause of the wait is logged.
            Iteration raises `GeneratorFailed` after 0.5 s if orders fail, and go on to, before a first sample has come.
        max_retries: Argument of softs 0.1.0, which never gave up: with `max_retries` alone, `request_timeout` is
            None. A whole number >= 1 as the sixth positional argument is taken for it, and a seventh for
            `retry_delay`.
        zero_copy: Whether tensors lie on the slots; otherwise each has memory of its own. A slot is used again when
            the last tensor, view or array on it is gone, in whatever thread; if the user keeps them all, iteration
            raises. What a DataLoader worker sends to its trainer is copied once on the way. To save or send a tensor,
            `clone()` it first: torch writes with it what lies between its rows.
        ordered: Samples come strictly by their sequence numbers, 0, 1, 2, ..., whichever supplier makes them; those
            of rank r of n are r, r + n, r + 2n, ... Iterators in one process go on where the last one stopped, and if
            several of them live, in whatever threads, each sample goes to one of them; so do those of a
            `SoftDataLoader` with worker processes. The workers of a DataLoader of torch take turns, sample by sample,
            and each iterator of it begins at the first one.
        prefetch: Samples that are ordered ahead at most; default: all slots.
        debug: Whether slots are overwritten with 0xFF when they are released, so that code that reads one later
            notices.
        rank: Rank of this process among those that share the streams, ordered or not: each sample has another
            sequence number, and each number goes to one rank. Default: that of torch.distributed, which must be
            initialised before the first sample is taken, or that of a job of `softs_fast.coordination`. A process
            that has neither, but a strategy of several ranks, must give it. Give `rank=0, world_size=1` where all
            ranks need the same samples.
        world_size: Number of processes that share the streams; given with `rank` only.

    Raises:
        ConfigError: `model_id` is no string or too long, a number is out of range, or `zero_copy` is impossible:
            the text says why.
    """

    @accepts_0_1_0
    def __init__(
        self,
        model_id: str,
        endpoint: str | None = None,
        batch_config: BatchConfig | None = None,
        medium_cls: Callable[..., Medium] = ShmMedium,
        num_slots: int = 8,
        retry_delay: float = 0.01,
        request_timeout: float | None = 60.0,
        *,
        max_retries: int | None = None,
        zero_copy: bool = False,
        ordered: bool = False,
        prefetch: int | None = None,
        debug: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if batch_config is None:
            raise TypeError("missing the argument batch_config")
        self._shared_model_id = SharedModelId(model_id)
        super().__init__(
            self._shared_model_id,
            endpoint or default_endpoint("frontend"),
            batch_config,
            medium_cls,
            StreamOptions(
                num_slots=num_slots,
                retry_delay=retry_delay,
                request_timeout=request_timeout,
                zero_copy=zero_copy,
                ordered=ordered,
                prefetch=prefetch,
                debug=debug,
                rank=rank,
                world_size=world_size,
            ),
        )
        self.max_retries = max_retries

    @property
    def model_id(self) -> str:
        """The product that is ordered now."""
        return self._shared_model_id.read()

    def set_model(self, model_id: str) -> None:
        """Order another product from now on, in every process that iterates over this dataset.

        In this process, orders that no supplier has claimed are cancelled, and samples of the new product ordered,
        before this returns, in whatever thread; other processes are woken to do it. Once this has returned, no
        iterator yields a sample of the old product but one that was about to, and no batch of a `SoftDataLoader`
        has samples of both. A DataLoader of torch delivers the batches that it has fetched ahead; a
        `SoftDataLoader` drops them. In an ordered dataset, each product has a stream of its own, which goes on where it
        was left.

        Raises:
            ConfigError: `model_id` is no string or longer than 256 bytes.
        """
        self._shared_model_id.write(model_id)
        self._update_subscription()
