"""The DataLoader over the endless dataset of one product, which `set_model` changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from ..configs import BatchConfig
from ..market import Medium, ShmMedium
from ..record import RecordOptions
from .arguments import accepts_0_1_0
from .endless_loader import EndlessDataLoader
from .soft_dataset import SoftIterableDataset

__all__ = ["SoftDataLoader"]


class SoftDataLoader(EndlessDataLoader):
    """DataLoader over a `SoftIterableDataset`, which is its attribute `soft_dataset`.

    Takes the arguments of `SoftIterableDataset` and then, by name, those of `EndlessDataLoader` and DataLoader:

        with SoftDataLoader("teacher", batch_config=config, batch_size=32, device="cuda") as loader:
            for batch in loader:
                train(batch["x"], batch["y"])

    With the default `collate_fn` no process is started; `num_workers=N` then means N times `num_slots` and N native
    threads that gather batches ahead, see `EndlessDataLoader`. After `set_model`, no batch of another product is handed
    out.

    With `zero_copy=True`, a batch is a block of neighbouring slots, which are released when the last tensor on them
    is gone; there must be slots for two batches at least. With `pin_memory=True`
    besides, batches are pinned copies: without `zero_copy`, they are gathered there in one copy by native code.

    With `ordered=True`, batch i has the samples i * batch_size and on, for any number of workers; each iterator goes on
    where the last one stopped. To resume in another process, keep the `state_dict`.

    Raises:
        ConfigError: as for `SoftIterableDataset`.
    """

    @accepts_0_1_0
    def __init__(
        self,
        /,
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
        device: torch.device | str | int | None = None,
        steps_per_epoch: int | None = None,
        record: str | os.PathLike[str] | RecordOptions | None = None,
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
            rank=rank,
            world_size=world_size,
        )
        super().__init__(
            dataset, device=device, steps_per_epoch=steps_per_epoch, record=record, **dataloader_kwargs
        )
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
