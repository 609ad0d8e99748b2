"""The DataLoader over the endless dataset: batches without a way through single samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..configs import BatchConfig
from ..errors import ConfigError
from ..market import Medium
from .arguments import accepts_0_1_0
from .backlog import Backlog
from .direct_queue import with_direct_queues
from .endless import NO_WORKERS, EndlessDataset
from .readers.copying import collate_rows, has_rows
from .soft_dataset import SoftIterableDataset
from .turns import CollateTagged, FreshBatches, collate_tagged_rows

__all__ = ["BatchIterator", "EndlessDataLoader", "SoftDataLoader"]


class EndlessDataLoader(DataLoader[dict[str, torch.Tensor]]):
    """DataLoader over an `EndlessDataset`: batches without a way through single samples, where that is possible.

    After a switch no batch of the product before comes, not even one that workers have fetched ahead, and none of two products.

    Args:
        dataset: where samples come from; the attribute `soft_dataset`.
        **dataloader_kwargs: of DataLoader. `in_order` is False unless it is given, so that nobody waits for a slow worker while another
            one has a batch; those of an ordered dataset come in order nevertheless.

    Raises:
        ConfigError: `zero_copy`, and too few slots for two batches.
    """

    def __init__(self, dataset: EndlessDataset, **dataloader_kwargs: Any) -> None:
        self.soft_dataset = dataset
        self._backlog: Backlog | None = None
        if dataloader_kwargs.get("collate_fn") is None and dataloader_kwargs.get("batch_size", 1) is not None:
            dataloader_kwargs = {**dataloader_kwargs, "collate_fn": collate_rows}
        super().__init__(dataset, **{"in_order": False, **dataloader_kwargs})
        if dataset._is_on_device and self.num_workers > 0:
            raise ConfigError(NO_WORKERS)
        if dataset._is_on_device and self.pin_memory:
            raise ConfigError(
                "CudaIpcMedium hands out tensors that are on the device already; leave out pin_memory"
            )
        if self.batch_size is not None:
            self.soft_dataset._use_blocks_of(self.batch_size)

    def __iter__(self) -> Any:
        """Return an iterator over batches, each `{name: dtype [batch_size, *shape]}`.

        Raises (the iterator): as that of `SoftIterableDataset`.
        """
        data = self.soft_dataset
        with data._lock():
            n_rows, collate_fn, context = self._rows_per_batch, self.collate_fn, self.multiprocessing_context
            # The iterator, or the workers that iterate, are made from these now; nobody else gets rows or tags.
            data._rows_per_batch = n_rows
            data._rows_per_turn = 1 if self.batch_size is None else self.batch_size
            if self._backlog is None or not self.persistent_workers:
                self._backlog = Backlog(self.num_workers) if data.ordered and self.num_workers > 0 else None
            else:
                self._backlog.clear()
            backlog = data._backlog = self._backlog
            if n_rows is None:
                self.collate_fn = CollateTagged(collate_fn, self.batch_size is not None)
            else:
                self.collate_fn = collate_tagged_rows
            if self.num_workers > 0:
                self.multiprocessing_context = with_direct_queues(context)
            try:
                iterator = super().__iter__()
            finally:
                data._rows_per_batch = data._rows_per_turn = data._backlog = None
                self.collate_fn, self.multiprocessing_context = collate_fn, context
        pins_slots = self.pin_memory and data.zero_copy and torch.cuda.is_available()
        if n_rows is None or self.num_workers > 0 or (self.pin_memory and not pins_slots):
            return FreshBatches(
                iterator,
                data._model.read,
                max(1, self.num_workers),
                ordered=data.ordered,
                returns=data._products_return,
                backlog=backlog,
            )
        return BatchIterator(iterator, data._batches(n_rows, pins_slots))

    def state_dict(self) -> dict[str, Any]:
        """Return how far the stream has come; see `SoftIterableDataset.state_dict`.

        Raises:
            ConfigError: the loader has workers, each with a stream of its own.
        """
        self._check_no_workers()
        return self.soft_dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin where another one stopped; see `SoftIterableDataset.load_state_dict`.

        Raises:
            ConfigError: the loader has workers, or is not ordered, or `state` is something else.
        """
        self._check_no_workers()
        self.soft_dataset.load_state_dict(state)

    @property
    def _rows_per_batch(self) -> int | None:
        plain = self.collate_fn is collate_rows and has_rows(self.soft_dataset.batch_config)
        return self.batch_size if plain else None

    def _check_no_workers(self) -> None:
        if self.num_workers > 0:
            raise ConfigError(
                f"the state is that of {self.num_workers} workers, which this loader does not gather; give its "
                f"soft_dataset to torchdata's StatefulDataLoader, or use num_workers=0"
            )


class SoftDataLoader(EndlessDataLoader):
    """DataLoader over a `SoftIterableDataset`, which is its attribute `soft_dataset`.

    Takes the arguments of `SoftIterableDataset` and then, by name, those of DataLoader:

        loader = SoftDataLoader("teacher", endpoints.frontend, config, ShmMedium, batch_size=32)
        for batch in loader:
            train(batch["x"], batch["y"])

    With `zero_copy=True`, a batch is a block of neighbouring slots, which comes back when the last tensor on it
    is gone; there must be slots for two batches at least. With `pin_memory=True` besides, and no workers, the
    slots themselves are pinned.

    After `set_model`, no batch of another product comes, not even one that workers have fetched ahead. Batches of workers come as they are
    made, whoever is slow: `in_order` is False unless it is given.

    With `ordered=True`, batch i has the samples i * batch_size and on, for any number of workers; each iterator of
    a loader with workers begins at 0, and without them they go on where the last one stopped. To resume
    one without workers, keep its `state_dict`. For one with workers, give `soft_dataset` to torchdata's
    StatefulDataLoader, with the same `batch_size`.

    Raises:
        ConfigError: as for `SoftIterableDataset`.
    """

    @accepts_0_1_0
    def __init__(
        self,
        /,
        model_id: str,
        endpoint: str,
        batch_config: BatchConfig,
        medium_cls: type[Medium],
        num_slots: int = 8,
        retry_delay: float = 0.01,
        request_timeout: float | None = 60.0,
        *,
        max_retries: int | None = None,
        zero_copy: bool = False,
        ordered: bool = False,
        prefetch: int | None = None,
        debug: bool = False,
        **dataloader_kwargs: Any,
    ) -> None:
        dataset = SoftIterableDataset(
            model_id,
            endpoint,
            batch_config,
            medium_cls,
            num_slots=num_slots,
            retry_delay=retry_delay,
            request_timeout=request_timeout,
            max_retries=max_retries,
            zero_copy=zero_copy,
            ordered=ordered,
            prefetch=prefetch,
            debug=debug,
        )
        super().__init__(dataset, **dataloader_kwargs)
        self.soft_dataset: SoftIterableDataset = dataset

    @property
    def model_id(self) -> str:
        """The product that is ordered now."""
        return self.soft_dataset.model_id

    def set_model(self, model_id: str) -> None:
        """Order another product from now on, in all workers; see `SoftIterableDataset.set_model`.

        Raises:
            ConfigError: `model_id` is no string or longer than 256 bytes.
        """
        self.soft_dataset.set_model(model_id)


class BatchIterator:
    """An iterator of DataLoader without its way through single samples, which costs more than small batches.

    Args:
        iterator: torch's own: it has drawn its random numbers, and answers what is not asked here.
        batches: what comes out.
    """

    def __init__(self, iterator: Any, batches: Iterator[dict[str, torch.Tensor]]) -> None:
        self._iterator = iterator
        self._next = batches.__next__

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        return self._next()

    def __len__(self) -> int:
        return len(self._iterator)
