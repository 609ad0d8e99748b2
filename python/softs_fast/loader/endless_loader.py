"""What the DataLoaders over endless datasets have in common."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from ..errors import ConfigError
from .endless import NO_WORKERS, EndlessDataset
from .plan import IterationPlan
from .readers.copying import has_rows
from .workers import BatchesOfWorkers, WorkerOptions

__all__ = ["EndlessDataLoader"]


class EndlessDataLoader(DataLoader[dict[str, torch.Tensor]]):
    """DataLoader over an `EndlessDataset`.

    With the default `collate_fn` no process is started: the suppliers are the workers. `num_workers=N` then means N
    times the slots of the dataset, and N native threads that gather up to `prefetch_factor` (2) batches each ahead of
    the caller. Order, resume, switches, zero copy and pinning are the same for every N; `timeout` and
    `persistent_workers` change nothing.

    With a `collate_fn`, a `worker_init_fn` or a `multiprocessing_context`, or with samples that a subclass of
    `BatchConfig` decodes, `num_workers=N` starts N of torch's worker processes. Each has a client and slots of its own,
    and makes the batches that it is asked for, so that order, resume and switches are exact there too.

    After a switch no batch of the product before is handed out, not even one that was fetched ahead, and no batch has
    samples of two products. Each iterator goes on where the stream is.

    Args:
        dataset: where samples come from; the attribute `soft_dataset`.
        **dataloader_kwargs: of DataLoader. `in_order` is False unless it is given, so that a slow worker holds up no
            batch of another one; batches of an ordered dataset come in order in any case.

    Raises:
        ConfigError: `zero_copy`, and too few slots for two batches; or `CudaIpcMedium` with worker processes or
            `pin_memory`.
    """

    def __init__(self, dataset: EndlessDataset, **dataloader_kwargs: Any) -> None:
        self.soft_dataset = dataset
        self._workers: BatchesOfWorkers | weakref.ref[BatchesOfWorkers] | None = None
        batch_size = dataloader_kwargs.get("batch_size", 1)
        num_workers = dataloader_kwargs.get("num_workers", 0)
        self._uses_processes = num_workers > 0 and (
            any(dataloader_kwargs.get(name) is not None for name in _PER_PROCESS)
            or not has_rows(dataset.batch_config)
        )
        own_collate_fn: Callable[[Any], Any] | None = dataloader_kwargs.get("collate_fn")
        if own_collate_fn is None and not has_rows(dataset.batch_config):
            own_collate_fn = default_convert if batch_size is None else default_collate
        dataloader_kwargs = {"in_order": False, **dataloader_kwargs}
        if num_workers > 0 and not self._uses_processes:
            prefetch_factor = dataloader_kwargs.pop("prefetch_factor", None)
            prefetch_factor = _PREFETCH_FACTOR if prefetch_factor is None else prefetch_factor
            if prefetch_factor < 1:
                raise ValueError(f"prefetch_factor must be at least 1, got {prefetch_factor}")
            dataloader_kwargs.pop("persistent_workers", None)
            # torch sees no workers, so it starts none.
            super().__init__(dataset, **{**dataloader_kwargs, "num_workers": 0})
            self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        else:
            super().__init__(dataset, **dataloader_kwargs)
        if dataset.is_on_device and self._uses_processes:
            raise ConfigError(NO_WORKERS)
        if dataset.is_on_device and self.pin_memory:
            raise ConfigError(
                "CudaIpcMedium hands out tensors that are on the device already; leave out pin_memory"
            )
        if self.batch_size is not None:
            dataset.check_batch_size(self.batch_size)
            dataset.batch_size = self.batch_size
        n_threads = 0 if self._uses_processes or self.batch_size is None else self.num_workers
        self._plan = IterationPlan(
            batch_size=self.batch_size,
            make_batch=own_collate_fn,
            n_threads=n_threads,
            n_ahead=n_threads * (self.prefetch_factor or 0),
            pins=self.pin_memory and torch.cuda.is_available(),
        )

    def __iter__(self) -> Any:
        """Return an iterator over batches, each `{name: dtype [batch_size, *shape]}`; it goes on where the stream is.

        Raises (the iterator):
            as that of `SoftIterableDataset`.
        """
        if self._uses_processes:
            return iter(self._running_workers())
        if self.pin_memory and not self._plan.pins:
            warnings.warn("pin_memory=True has no effect: there is no CUDA device", stacklevel=2)
        # torch's own iterator draws one number, too.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return self.soft_dataset.iterate(self._plan)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the stream has come; see `SoftIterableDataset.state_dict`."""
        return self.soft_dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin where another one stopped; see `SoftIterableDataset.load_state_dict`.

        Raises:
            ConfigError: the loader is not ordered, or `state` is something else.
        """
        self.soft_dataset.load_state_dict(state)
        # Workers that are still running have been asked for other batches.
        self._workers = None

    def _running_workers(self) -> BatchesOfWorkers:
        """Return the batches of worker processes; the iterators that live share them."""
        running = self._workers() if isinstance(self._workers, weakref.ref) else self._workers
        if running is None:
            options = WorkerOptions(
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch_factor,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
                worker_init_fn=self.worker_init_fn,
                multiprocessing_context=self.multiprocessing_context,
                generator=self.generator,
                in_order=self.in_order or self.soft_dataset.ordered,
            )
            running = BatchesOfWorkers(self.soft_dataset, self._plan, options)
            self._workers = running if self.persistent_workers else weakref.ref(running)
        return running


_PREFETCH_FACTOR = 2
#: What only a process can do.
_PER_PROCESS = ("collate_fn", "worker_init_fn", "multiprocessing_context")
