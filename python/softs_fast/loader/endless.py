"""What endless datasets have in common: each process that iterates over one has a client of its own."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.sharedctypes import RawArray
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from .. import _core
from ..configs import BatchConfig
from ..errors import ConfigError
from ..market import Client, Medium
from .plan import SINGLE_SAMPLES, IterationPlan
from .product.source import ProductSource
from .product.subscription import MAX_PRODUCTS, Stride, Subscription
from .ranks import Ranks, checked_ranks, place_of_process, ranks_of_process
from .readers.choice import make_reader
from .readers.device import check_on_device, is_on_device
from .readers.views import check_zero_copy
from .sample_iterator import Reader, SampleIterator, Stream
from .stream_lock import StreamLock
from .stream_options import StreamOptions
from .wait_policy import WaitPolicy

__all__ = ["EndlessDataset", "checked_positions"]


class EndlessDataset(IterableDataset[dict[str, torch.Tensor]]):
    """Endless dataset of the samples of a product that may change.

    Args:
        source: Source that names the product to order, in any process.
        endpoint, batch_config, medium_cls: The same as for `SoftIterableDataset`.
        options: How the samples are taken.

    Raises:
        ConfigError: as for `SoftIterableDataset`.
    """

    def __init__(
        self,
        source: ProductSource,
        endpoint: str,
        batch_config: BatchConfig,
        medium_cls: Callable[..., Medium],
        options: StreamOptions,
    ) -> None:
        self._open: _OpenClient | None = None
        # Samples of an unordered stream begin after so many numbers of this rank: earlier clients have used those.
        self._n_used = 0
        # The same, by worker: what those have used that a loader has started last.
        self._used_by_workers: ctypes.Array[ctypes.c_uint64] | None = None
        # By process, so that a fork has its own: what it inherits may be locked by a thread that it does not have.
        self._locks: dict[int, threading.RLock] = {}
        self._positions: dict[int, dict[str, int]] = {}
        # An iterator was made since the positions were loaded.
        self._has_begun = False
        self._home_pid = os.getpid()
        _sweep_at_exit()
        self._given_ranks = checked_ranks(options.rank, options.world_size)
        # In a worker that was not forked: those of its trainer.
        self._trainers_ranks: Ranks | None = None
        # With which this process has begun to take samples, and the place for which that was checked last.
        self._begun_as: Ranks | None = None
        self._checked_for: object = None
        self.source = source
        self.endpoint = endpoint
        self.num_slots = options.num_slots
        self.batch_config = batch_config
        self.medium_cls = medium_cls
        self.retry_delay = options.retry_delay
        self.request_timeout = options.request_timeout
        self.zero_copy = options.zero_copy
        self.ordered = options.ordered
        self.prefetch = options.prefetch
        self.debug = options.debug
        self._max_failures = options.max_failures
        self._first_wait_ms = options.first_wait_ms
        self.is_on_device = is_on_device(medium_cls)
        if self.is_on_device:
            check_on_device(batch_config, zero_copy=options.zero_copy)
        elif options.zero_copy:
            check_zero_copy(batch_config, medium_cls)
        #: Samples that belong together: workers of a DataLoader of torch take so many in turns. A loader over this
        #: dataset sets it.
        self.batch_size = 1
        self.check_batch_size(1)

    def state_dict(self) -> dict[str, Any]:
        """Return how many samples this process has handed out, for `load_state_dict`.

        Samples that were fetched ahead and not handed out are not counted, so they are not lost. torchdata's
        StatefulDataLoader calls this in each worker.

        Returns:
            `{"positions": {product: number of samples}}`, the products that were used last; where several ranks share
            the stream also `"world_size"`. Ranks that go in step have the same state. Where samples come in no order,
            `"numbered"`: numbers of samples that this rank has ordered.
        """
        world_size = self.ranks().world_size
        return (
            {"positions": dict(self.own_positions())}
            | ({"world_size": world_size} if world_size > 1 else {})
            | ({} if self.ordered else {"numbered": self._n_numbered()})
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let iterators that this process makes from now on begin where another one stopped.

        The model is not part of it: give it to the constructor or to `set_model`.

        Where samples come in no order, there is no such place: they go on with numbers that were not ordered before, and a
        warning says so.

        Args:
            state: State that `state_dict` returned.

        Raises:
            ConfigError: `state` is something else, or another number of ranks shared the stream.
        """
        positions = checked_positions(state)
        have, need = state.get("world_size", 1), self.ranks().world_size
        if have != need:
            raise ConfigError(
                f"the state counts the samples of each of {have} ranks, but {need} share the stream now; call this after "
                f"init_process_group, give rank and world_size as then, or load positions counted for {need}: "
                f"{{'positions': {{product: samples of each rank}}, 'world_size': {need}}}"
            )
        if self.ordered:
            self._go_to(positions)
            return
        self._n_used = max(self._n_used, state.get("numbered", 0))
        warnings.warn(
            "samples come in no order, so the stream does not go on where the state was saved, but with samples that were "
            "not ordered before; use ordered=True to go on exactly",
            stacklevel=2,
        )

    def _go_to(self, positions: dict[str, int]) -> None:
        """Let iterators that this process makes from now on begin there."""
        with self._lock():
            self._positions[os.getpid()] = positions
            if self._open is not None:
                # Live iterators go on with what they have.
                self._open.forget_readers()
            self._has_begun = False

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator that yields samples for ever; each is `{name: dtype [*shape]}`.

        An exception does not end the iterator: the next call goes on.

        Raises (the iterator):
            SampleTimeout: no sample for `request_timeout` seconds, or the user holds all slots; the subclass and
                the text name the cause.
            WireError: a sample is not what a codec of `batch_config` writes; its slot was released.
            SegmentError: `close` was called.
        """
        return self.iterate(SINGLE_SAMPLES)

    def iterate(self, plan: IterationPlan) -> SampleIterator:
        """Return an iterator over the items of a plan in this process; it opens the client at its first request."""
        worker = get_worker_info()
        if self.ordered and worker is not None and worker.dataset is self:
            # The trainer makes another iterator of persistent workers. It has dropped batches of the last one, and
            # which is not known here.
            if self._has_begun:
                self._go_to({})
            self._has_begun = True
        run = self.batch_size
        stride = Stride() if worker is None else Stride(worker.id * run, run, worker.num_workers * run)
        # torch may end a worker that has failed with a signal, which leaves no time to clean up.
        on_error = None if worker is None else self.close
        return SampleIterator(
            lambda: self.begin(plan, self.own_positions(), stride), on_error, self.check_ranks
        )

    def begin_workers(self, n_workers: int) -> ctypes.Array[ctypes.c_uint64]:
        """Return where the workers that a loader starts now call `note_used`; they go on after those of the last ones."""
        if self._used_by_workers is not None:
            self._n_used = max(self._n_used, *self._used_by_workers)
        self._used_by_workers = RawArray(ctypes.c_uint64, n_workers)
        return self._used_by_workers

    def note_used(self, used: ctypes.Array[ctypes.c_uint64], n_rows: int) -> None:
        """Note, in a worker that is about to make a batch of n rows, how many numbers are used when it has made it."""
        worker = get_worker_info()
        assert worker is not None
        used[worker.id] = (n_rows + self.num_slots) * worker.num_workers + self._n_used_here()

    def begin(self, plan: IterationPlan, positions: dict[str, int], stride: Stride) -> tuple[Stream, Reader]:
        """Return the samples and the reader with which this process iterates.

        Args:
            plan: Plan of what the reader makes.
            positions: Number of samples of each product that were handed out; kept up to date.
            stride: Stride of the samples to take, if the dataset is ordered.
        """
        with self._lock():
            opened = self._open_client(plan)
            # Iterators share a reader that takes samples ahead: in an ordered stream it has their next samples, and the
            # threads of a loader gather for all of its iterators; an epoch goes on with what the one before has begun.
            shares = self.ordered or plan.keeps_reader
            reader: Reader | None = opened.reader(plan) if shares else None
            if reader is None:
                reader = make_reader(self, opened.client, plan, opened.block)
                if shares:
                    opened.keep_reader(plan, reader)
        wait = WaitPolicy(
            opened.client, self.retry_delay, self.request_timeout, self._max_failures, self._first_wait_ms
        )
        lock = opened.lock if shares else StreamLock()
        stream = Stream(
            self.source,
            opened.subscription,
            positions,
            stride if self.ordered else None,
            lock,
            wait,
            plan.record,
        )
        return stream, reader

    def close(self) -> None:
        """Close this process's client, if there is one; the next iterator opens a new one.

        Tensors on slots stay what they are. Live iterators raise SegmentError, those of zero-copy samples when
        they have handed out their block.
        """
        opened, self._open = self._open, None
        if opened is not None and opened.pid == os.getpid():
            opened.close()
            self._n_used = self._n_used_by(opened)

    def __del__(self) -> None:
        """Close the client if it is open."""
        with contextlib.suppress(Exception):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client behind: the process that unpickles opens its own."""
        return {
            **self.__dict__,
            "_open": None,
            "_used_by_workers": None,
            "_locks": {},
            "_begun_as": None,
            "_trainers_ranks": self.ranks(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `__getstate__` returned, in another process or as a copy."""
        self.__dict__.update(state)
        _sweep_at_exit()

    def check_batch_size(self, batch_size: int) -> None:
        """Check that the slots are enough for batches of this size.

        Raises:
            ConfigError: with zero_copy, there are no slots for two batches.
        """
        if self.zero_copy and self.num_slots < 2 * batch_size:
            raise ConfigError(
                f"zero_copy needs slots for two batches at least: num_slots must be at least {2 * batch_size} with "
                f"batches of {batch_size}, got {self.num_slots}"
            )

    def own_positions(self) -> dict[str, int]:
        """Return how many samples of each product this process has handed out; a worker begins without its trainer's."""
        return self._positions.setdefault(os.getpid(), {})

    def check_ranks(self) -> None:
        """Check that this process is the rank that it was when it began to take samples.

        Raises:
            ConfigError: It is another one: torch.distributed was initialized, or the workers of its job have changed.
        """
        place = place_of_process()
        if self._begun_as is not None and (place is None or place is self._checked_for):
            return
        ranks, self._checked_for = self.ranks(), place
        self._begun_as = self._begun_as or ranks
        if ranks != self._begun_as:
            self._checked_for = None
            was, now = (f"rank {one.rank} of {one.world_size}" for one in (self._begun_as, ranks))
            raise ConfigError(
                f"this process was {was} when it began to take samples, and is {now} now, so that ranks would take the same "
                "samples; make a new loader after init_process_group and when the workers of the job change, or give rank= "
                "and world_size="
            )

    def ranks(self) -> Ranks:
        """Return which of the processes that share the streams this one is, or is a worker of."""
        if self._given_ranks is not None:
            return self._given_ranks
        if self._trainers_ranks is not None and get_worker_info() is not None:
            return self._trainers_ranks
        return ranks_of_process()

    def _share(self) -> tuple[int, int]:
        """Return which sequence numbers the client of this process has, see `Client`."""
        ranks = self.ranks()
        if self.ordered:
            # Streams go on where they are, and workers take turns, see `Stride`.
            return ranks
        worker, first = get_worker_info(), ranks.rank + ranks.world_size * self._n_used
        if worker is None:
            return first, ranks.world_size
        return first + ranks.world_size * worker.id, ranks.world_size * worker.num_workers

    def _n_used_by(self, opened: _OpenClient) -> int:
        """Return how many numbers of this rank are used with those of a client of this process."""
        worker = get_worker_info()
        return self._n_used + opened.client.n_numbered * (1 if worker is None else worker.num_workers)

    def _n_used_here(self) -> int:
        """Return how many numbers of this rank are used in this process; a worker may have inherited a client of its trainer."""
        opened = self._open
        return self._n_used if opened is None or opened.pid != os.getpid() else self._n_used_by(opened)

    def _n_numbered(self) -> int:
        """Return how many numbers of this rank are used in this process and in the workers that it has started."""
        return max(self._n_used_here(), *(self._used_by_workers or (0,)))

    def _update_subscription(self) -> None:
        """Have the client of this process, if there is one, order the product that is wanted now."""
        opened = self._open
        if opened is not None and opened.pid == os.getpid():
            opened.subscription.update()

    def _needs_watcher(self) -> bool:
        """Return whether another process may change the product without calling this object."""
        return os.getpid() != self._home_pid

    def _lock(self) -> threading.RLock:
        """Return what this process holds while it opens its client or changes what iterators share."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _make_client(self, **arguments: Any) -> Client:
        return Client(**arguments)

    def _open_client(self, plan: IterationPlan) -> _OpenClient:
        """Return the open client; one with blocks of another size is closed, and a new one opened."""
        block = (plan.batch_size or self.batch_size) if self.zero_copy else 1
        opened = self._open
        if opened is not None and opened.pid == os.getpid():
            if plan.batch_size is None or opened.block == block:
                return opened
            self.close()
        if self.is_on_device and get_worker_info() is not None:
            raise ConfigError(NO_WORKERS)
        num_slots = self.num_slots * max(1, plan.n_threads)
        client = self._make_client(
            endpoint=self.endpoint,
            medium_cls=self.medium_cls,
            slot_size=self.batch_config.nbytes(),
            num_slots=num_slots // block * block,
            ordered=self.ordered,
            prefetch=self.prefetch,
            block=block,
            share=self._share(),
            scribble=self.debug,
            ragged=self.batch_config.ragged,
        )
        if multiprocessing.parent_process() is not None:
            # A forked worker ends without running finalizers of what its parent's frames still hold.
            multiprocessing.util.Finalize(self, client.close, exitpriority=10)
        subscription = Subscription(client, self.source, watches=self._needs_watcher())
        self._open = opened = _OpenClient(client, block, subscription)
        return opened


class _OpenClient:
    """The client of one process, and what its iterators share."""

    def __init__(self, client: Client, block: int, subscription: Subscription) -> None:
        self.client = client
        self.block = block
        self.subscription = subscription
        self.pid = os.getpid()
        self.lock = StreamLock()
        # This reader lives as long as the client, so that iterators lose nothing of what it has.
        self._kept: tuple[IterationPlan, Reader] | None = None

    def reader(self, plan: IterationPlan) -> Reader | None:
        """Return the reader that was kept for a plan."""
        if self._kept is not None and self._kept[0] is plan:
            return self._kept[1]
        return self.lock.readers.get(plan)

    def keep_reader(self, plan: IterationPlan, reader: Reader) -> None:
        """Keep a reader for the next iterators of the same plan."""
        if plan.keeps_reader:
            self._kept = (plan, reader)
        else:
            self.lock.readers[plan] = reader

    def forget_readers(self) -> None:
        """Keep no reader any longer."""
        self.lock.readers.clear()
        self._kept = None

    def close(self) -> None:
        """Close the client, then end the thread that follows the product."""
        self.forget_readers()
        self.client.close()
        self.subscription.close()


def _sweep_at_exit() -> None:
    """Have this process remove what its workers leave, when it ends. Idempotent.

    multiprocessing ends the workers that still run by SIGTERM, after which they clean nothing up.
    """
    global _swept_pid
    if _swept_pid != os.getpid():
        _swept_pid = os.getpid()
        # A negative priority comes after that.
        multiprocessing.util.Finalize(None, _core.sweep, exitpriority=-1)


def checked_positions(state: Any) -> dict[str, int]:
    """Return a copy of the positions in what `state_dict` returned."""
    positions = state.get("positions") if isinstance(state, Mapping) else None
    if (
        not isinstance(positions, Mapping)
        or len(positions) > MAX_PRODUCTS
        or not all(
            isinstance(product, str) and type(position) is int and 0 <= position < _MAX_POSITION
            for product, position in positions.items()
        )
    ):
        raise ConfigError(
            "the state is none of a SoftIterableDataset: need {'positions': {product: samples}}"
        )
    return dict(positions)


NO_WORKERS = (
    "CudaIpcMedium hands out tensors on a device, which a DataLoader's worker processes cannot send; use num_workers=0 with your "
    "own collate_fn, worker_init_fn or multiprocessing_context: batches are made by the device, and need no workers"
)
#: The process that sweeps when it ends.
_swept_pid: int | None = None
#: Sequence numbers have 64 bits; the strides of workers need some of them.
_MAX_POSITION = 2**48
