"""What the DataLoaders over endless datasets have in common."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from ..errors import ConfigError
from ..process import Closing
from ..record import RecordOptions, record_options
from .accelerated import DatasetOfLoader, reported_epoch
from .arguments import whole_number
from .batch_iterator import BatchIterator
from .endless import NO_WORKERS, EndlessDataset
from .plan import IterationPlan
from .readers.copying import has_rows
from .readers.transfer import Transfer, target_device
from .stats import IteratorCounts, LoaderStats, StatsRecorder
from .tap import RecordingTap
from .workers import BatchesOfWorkers, WorkerOptions

__all__ = ["EndlessDataLoader"]


class EndlessDataLoader(DataLoader[dict[str, torch.Tensor]], Closing):
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
        dataset: Dataset that samples come from; the attribute `soft_dataset`. Of the attribute `dataset` no other
            DataLoader can be made, as `accelerate.skip_first_batches` does, if there is an order or an epoch to keep.
        device: Device on which batches are handed out: anything that `torch.device` takes. On a CUDA device they are
            gathered in pinned memory, by one native thread at least, and each is copied while the caller works with
            the one before it; no step waits for the copy on the host. With worker processes the copy begins when the
            batch is handed out. None and "cpu" change nothing.
        steps_per_epoch: Batches after which an iterator ends; it is the length of the loader. The next iterator goes on
            where the stream is; the first one after `load_state_dict` completes the epoch of the state. None: the loader
            is endless and has no length.
        record: Folder, or `RecordOptions`, to record what is handed out: of one product, in batches of tensors by name. None
            records nothing. An ordered stream is recorded by its sequence numbers.
        **dataloader_kwargs: Arguments of DataLoader. `in_order` is False unless it is given, so that a slow worker
            holds up no batch of another one; batches of an ordered dataset come in order in any case.

    Raises:
        ConfigError: `zero_copy`, and too few slots for two batches; `CudaIpcMedium` with worker processes, `pin_memory`
            or `device`; a device that torch does not see; `steps_per_epoch` below 1; or `record` with batches that cannot be
            recorded.
    """

    #: Accelerate takes the loader as it is. It would make another one of the dataset otherwise, which fetches a batch ahead
    #: and hands it out after a switch. It sets the same attribute of the loaders that it was given.
    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: EndlessDataset,
        *,
        device: torch.device | str | int | None = None,
        steps_per_epoch: int | None = None,
        record: str | os.PathLike[str] | RecordOptions | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        self.device = target_device(device)
        if steps_per_epoch is not None:
            steps_per_epoch = whole_number("steps_per_epoch", steps_per_epoch, 1)
        self.steps_per_epoch = steps_per_epoch
        self._stats = StatsRecorder()
        # Of the newest iterator, and the batches of its epoch that were handed out before it.
        self._newest, self._n_before = IteratorCounts(), 0
        self._has_begun = False
        self.soft_dataset = dataset
        #: Accelerate saves and loads the place in an ordered stream with its own state, equal on all ranks.
        self.use_stateful_dataloader = dataset.ordered
        self._workers: BatchesOfWorkers | weakref.ref[BatchesOfWorkers] | None = None
        batch_size = dataloader_kwargs.get("batch_size", 1)
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size, 1)
        num_workers = whole_number("num_workers", dataloader_kwargs.get("num_workers", 0), 0)
        self._uses_processes = num_workers > 0 and (
            any(dataloader_kwargs.get(name) is not None for name in _PER_PROCESS)
            or not has_rows(dataset.batch_config)
        )
        own_collate_fn: Callable[[Any], Any] | None = dataloader_kwargs.get("collate_fn")
        if own_collate_fn is None and not has_rows(dataset.batch_config):
            own_collate_fn = default_convert if batch_size is None else default_collate
        numbers = {"batch_size": batch_size, "num_workers": num_workers}
        dataloader_kwargs = {"in_order": False, **dataloader_kwargs, **numbers}
        has_place = dataset.ordered or steps_per_epoch is not None
        shown = DatasetOfLoader(dataset) if has_place else dataset
        if num_workers > 0 and not self._uses_processes:
            prefetch_factor = dataloader_kwargs.pop("prefetch_factor", None)
            prefetch_factor = _PREFETCH_FACTOR if prefetch_factor is None else prefetch_factor
            if prefetch_factor < 1:
                raise ValueError(f"prefetch_factor must be at least 1, got {prefetch_factor}")
            dataloader_kwargs.pop("persistent_workers", None)
            # torch sees no workers, so it starts none.
            super().__init__(shown, **{**dataloader_kwargs, "num_workers": 0})
            self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        else:
            super().__init__(shown, **dataloader_kwargs)
        if dataset.is_on_device and self._uses_processes:
            raise ConfigError(NO_WORKERS)
        if dataset.is_on_device and (self.pin_memory or device is not None):
            raise ConfigError(
                "CudaIpcMedium hands out tensors that are on the device already; leave out pin_memory and device"
            )
        if self.batch_size is not None:
            dataset.check_batch_size(self.batch_size)
            dataset.batch_size = self.batch_size
        n_threads = 0 if self._uses_processes or self.batch_size is None else self.num_workers
        is_to_cuda = self.device is not None and self.device.type == "cuda"
        if is_to_cuda and self.batch_size is not None and own_collate_fn is None:
            n_threads = max(1, n_threads)
        options = record_options(record)
        self._tap = None if options is None else RecordingTap(options, dataset)
        self._plan = IterationPlan(
            batch_size=self.batch_size,
            make_batch=own_collate_fn,
            n_threads=n_threads,
            n_ahead=n_threads * (self.prefetch_factor or _PREFETCH_FACTOR),
            pins=(self.pin_memory or is_to_cuda) and torch.cuda.is_available(),
            device=self.device,
            keeps_reader=n_threads > 0 or steps_per_epoch is not None,
            record=self._tap,
        )
        if self._tap is not None:
            self._tap.check(self._plan)

    def __iter__(self) -> Any:
        """Return an iterator over batches, each `{name: dtype [batch_size, *shape]}`; it goes on where the stream is.

        Raises (the iterator):
            as that of `SoftIterableDataset`.
            SoftsError: With `record`, the recording cannot be written, is of something else, or is damaged.
        """
        counts = self._stats.new_counts()
        if self._newest.n_batches:
            self._n_before = 0
        self._newest, self._has_begun = counts, True
        n_batches = None if self.steps_per_epoch is None else self.steps_per_epoch - self._n_before
        epoch = None if n_batches is None else reported_epoch(self)
        if self._uses_processes:
            move = None if self.device is None else Transfer(self.device)
            return BatchIterator(iter(self._running_workers()), n_batches, counts, move, epoch)
        if self.pin_memory and not self._plan.pins:
            warnings.warn("pin_memory=True has no effect: there is no CUDA device", stacklevel=2)
        # torch's own iterator draws one number, too.
        device = None if self.generator is None else self.generator.device
        torch.empty((), dtype=torch.int64, device=device).random_(generator=self.generator)
        batches = self.soft_dataset.iterate(self._plan)
        return BatchIterator(batches, n_batches, counts, epoch=epoch)

    def __len__(self) -> int:
        """Return `steps_per_epoch`.

        Raises:
            TypeError: there is none.
        """
        if self.steps_per_epoch is None:
            raise TypeError("the loader is endless and has no length; give steps_per_epoch")
        return self.steps_per_epoch

    @property
    def stats(self) -> LoaderStats:
        """What the iterators of this loader have handed out in this process, and how long the caller waited."""
        return self._stats.total(self.batch_size or 1)

    def close(self) -> None:
        """Close this process's client; the next iterator opens a new one. The end of a ``with`` block.

        Live iterators raise SegmentError. Worker processes end with the last iterator that uses them. A recording is written
        to its end; a later iterator continues it.

        Raises:
            SoftsError: The rest of the recording cannot be written.
        """
        self._workers = None
        self.soft_dataset.close()
        if self._tap is not None:
            self._tap.close()

    def state_dict(self) -> dict[str, Any]:
        """Return how far the stream has come; see `SoftIterableDataset.state_dict`.

        Returns:
            What that returns, and with `steps_per_epoch`, in the midst of an epoch, `"batches"`: how many of it the newest
            iterator has handed out.
        """
        n_batches = (self._n_before + self._newest.n_batches) % (self.steps_per_epoch or 1)
        return self.soft_dataset.state_dict() | ({"batches": n_batches} if n_batches else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin where another one stopped, and end with the epoch of that one.

        See `SoftIterableDataset.load_state_dict`.

        Raises:
            ConfigError: `state` is something else, or another number of ranks shared the stream.
        """
        n_batches = state.get("batches", 0) if isinstance(state, Mapping) else 0
        if type(n_batches) is not int or n_batches < 0:
            raise ConfigError(f"batches of the state must be a whole number from 0 on, got {n_batches!r}")
        self.soft_dataset.load_state_dict(state)
        self._newest, self._n_before = IteratorCounts(), n_batches % (self.steps_per_epoch or 1)
        self._has_begun = True
        # Workers that are still running have been asked for other batches.
        self._workers = None

    def set_epoch(self, epoch: int) -> None:
        """Check that the epoch which a trainer is about to begin can begin where the stream is.

        Args:
            epoch: its number, from 0 on.

        Raises:
            ConfigError: a run that resumes has not said where its ordered stream stopped: the samples of its first epoch
                would be trained on again.
        """
        if epoch and self.soft_dataset.ordered and not self._has_begun:
            raise ConfigError(
                f"epoch {epoch} would begin with the first sample of the ordered stream; give load_state_dict what "
                f"state_dict() was when the checkpoint was saved, or {{'positions': {{}}}} to begin the stream again"
            )

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
            lives_on = self.persistent_workers or self.steps_per_epoch is not None
            self._workers = running if lives_on else weakref.ref(running)
        return running


_PREFETCH_FACTOR = 2
#: What only a process can do.
_PER_PROCESS = ("collate_fn", "worker_init_fn", "multiprocessing_context")
