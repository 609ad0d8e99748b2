"""What endless datasets have in common: each process that iterates over one has a client of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ..configs import BatchConfig
from ..errors import ConfigError
from ..market import Client, Medium
from .arguments import check_at_least
from .backlog import Backlog
from .product.subscription import MAX_PRODUCTS, Course, Plan, WantedProduct
from .product.watch import Watch
from .readers.block_rows import BlockRows
from .readers.copying import batch_reader, rows_of
from .readers.device import DeviceBlockReader, DeviceReader, check_on_device, is_on_device
from .readers.pinning import pin
from .readers.views import BlockReader, check_zero_copy
from .sample_iterator import Stream
from .stream_lock import Turn
from .turns import Turns
from .wait_policy import WAIT_MS

__all__ = ["EndlessDataset"]

_Reader = TypeVar("_Reader")


class EndlessDataset(IterableDataset[dict[str, torch.Tensor]]):
    """Endless dataset of the samples of a product that may change: what `SoftIterableDataset` and others have in common.

    Args:
        model: names the product to order, in whatever process.
        max_failures: orders that may fail in a row before iteration raises, after a second at least; None: any
            number.
        first_wait_ms: how soon a wait looks whether the model has changed, see `Stream`.
        medium_cls, ...: as for `SoftIterableDataset`.

    Raises:
        ConfigError: as for `SoftIterableDataset`.
    """

    #: Whether a product may be wanted again after another one.
    _products_return = True

    def __init__(
        self,
        model: WantedProduct,
        endpoint: str,
        batch_config: BatchConfig,
        medium_cls: Callable[..., Medium],
        *,
        num_slots: int,
        retry_delay: float,
        request_timeout: float | None,
        zero_copy: bool,
        ordered: bool,
        prefetch: int | None,
        debug: bool,
        max_failures: int | None = None,
        first_wait_ms: int = WAIT_MS,
    ) -> None:
        self._client: Client | None = None
        self._client_pid: int | None = None
        self._unpin: Callable[[], None] | None = None
        # By process, so that a fork has its own: what it inherits may be locked by a thread that it has not.
        self._locks: dict[int, threading.RLock] = {}
        self._positions: dict[int, dict[str, int]] = {}
        self._turn = Turn()
        # An iterator was made since the positions were loaded.
        self._has_begun = False
        self._batch_size = 1
        self._rows_per_batch: int | None = None
        # Items of each batch of a loader that wants to know of which product they are.
        self._rows_per_turn: int | None = None
        self._backlog: Backlog | None = None
        self._course: Course | None = None
        self._watch: Watch | None = None
        self._home_pid = os.getpid()
        self._last_stream: Stream | None = None
        check_at_least("num_slots", num_slots, 1)
        check_at_least("retry_delay", retry_delay, 0)
        if request_timeout is not None:
            check_at_least("request_timeout", request_timeout, 0)
        if prefetch is not None:
            check_at_least("prefetch", prefetch, 1)
        self._model = model
        self.endpoint = endpoint
        self.num_slots = num_slots
        self.batch_config = batch_config
        self.medium_cls = medium_cls
        self.retry_delay = retry_delay
        self.request_timeout = request_timeout
        self.zero_copy = zero_copy
        self.ordered = ordered
        self.prefetch = prefetch
        self.debug = debug
        self._max_failures = max_failures
        self._first_wait_ms = first_wait_ms
        self._is_on_device = is_on_device(medium_cls)
        if self._is_on_device:
            check_on_device(batch_config, zero_copy=zero_copy)
        elif zero_copy:
            check_zero_copy(batch_config, medium_cls)
        if zero_copy:
            self._use_blocks_of(1)

    def state_dict(self) -> dict[str, Any]:
        """Return how many samples this process has handed out, for `load_state_dict`.

        Samples that were fetched ahead and not handed out are not counted, so they are not lost. torchdata's
        StatefulDataLoader calls this in each worker.

        Returns:
            `{"positions": {product: number of samples}}`, the products that were used last.
        """
        return {"positions": dict(self._own_positions())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let iterators that this process makes from now on begin where another one stopped.

        The model is not part of it: give it to the constructor or to `set_model`.

        Args:
            state: what `state_dict` returned.

        Raises:
            ConfigError: the dataset is not ordered, or `state` is something else.
        """
        if not self.ordered:
            raise ConfigError(
                "samples come in no order, so there is no place to go on from; use ordered=True"
            )
        positions = _checked_positions(state)
        with self._lock():
            self._positions[os.getpid()] = positions
            # Iterators that live go on with what they have.
            self._turn.readers.clear()
            self._has_begun = False

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator that yields samples for ever; each is `{name: dtype [*shape]}`.

        Raises (the iterator):
            SampleTimeout: no sample for `request_timeout` seconds, or the user holds all slots; the subclass and
                the text name the cause.
            HelloError: the broker did not answer when the client was opened.
            WireError: a sample is not what a codec of `batch_config` writes; its slot has gone back.
            SegmentError: `close` was called.
        """
        n_rows, items_per_turn = self._rows_per_batch, self._rows_per_turn
        items = self._iterate(n_rows)
        if items_per_turn is not None:
            worker = get_worker_info()
            which, n_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
            if n_rows is not None:
                items_per_turn = 1
            items = Turns(items, self._newest_stream, items_per_turn, which, n_workers, self._backlog)
        return items if n_rows is None else rows_of(items, n_rows)

    def close(self) -> None:
        """Close this process's client, if there is one; the next iterator opens a new one.

        Tensors on slots stay what they are. Iterators that live raise SegmentError, those of zero-copy samples when
        they have handed out their block.
        """
        client, self._client = self._client, None
        self._course = self._last_stream = None
        watch, self._watch = self._watch, None
        unpin, self._unpin = self._unpin, None
        if client is not None and self._client_pid == os.getpid():
            if unpin is not None:
                unpin()
            client.close()
            if watch is not None:
                watch.end()

    def __del__(self) -> None:
        """Close the client if nobody did."""
        with contextlib.suppress(Exception):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client behind: the process that unpickles opens its own."""
        return {
            **self.__dict__,
            "_client": None,
            "_client_pid": None,
            "_unpin": None,
            "_locks": {},
            "_turn": None,
            "_course": None,
            "_watch": None,
            "_last_stream": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn = Turn()

    def _use_blocks_of(self, n: int) -> None:
        """Take slots by n neighbours: those of one batch of a SoftDataLoader."""
        self._batch_size = n
        if self.zero_copy and self.num_slots < 2 * n:
            raise ConfigError(
                f"zero_copy needs slots for two batches at least: num_slots must be at least {2 * n} with batches "
                f"of {n}, got {self.num_slots}"
            )

    def _iterate(self, rows_per_batch: int | None) -> Iterator[Any]:
        """Yield batches of so many rows, or samples."""
        in_worker = get_worker_info() is not None
        try:
            yield from self._samples() if rows_per_batch is None else self._batches(rows_per_batch)
        except Exception:
            if in_worker:
                # torch ends a worker that has failed with a signal, which leaves no time to clean up.
                self.close()
            raise

    def _samples(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield samples for ever, `{name: dtype [*shape]}`."""
        stream = self._stream()
        if self.zero_copy:
            rows = self._reader(BlockRows, lambda: BlockRows(self._block_reader(pinned=False)))
            return stream.rows(rows)
        if self._is_on_device:
            batches = stream.batches(DeviceReader(self.batch_config, self._open_client(), 1))
            return ({name: tensor[0] for name, tensor in batch.items()} for batch in batches)
        return stream.samples()

    def _batches(self, n_rows: int, pinned: bool = False) -> Iterator[dict[str, torch.Tensor]]:
        """Yield batches for ever, `{name: dtype [n_rows, *shape]}`; `pinned` ones only with zero_copy."""
        stream = self._stream()
        if self.zero_copy:
            yield from stream.batches(self._block_reader(pinned))
        elif self._is_on_device:
            yield from stream.batches(DeviceReader(self.batch_config, self._open_client(), n_rows))
        else:
            client = self._open_client()
            yield from stream.batches(
                self._reader(n_rows, lambda: batch_reader(self.batch_config, client, n_rows))
            )

    def _reader(self, key: object, make: Callable[[], _Reader]) -> _Reader:
        """Return a reader that takes samples ahead; iterators of an ordered stream share it, for those are the next samples."""
        if not self.ordered:
            return make()
        with self._lock():
            reader: _Reader | None = self._turn.readers.get(key)
            if reader is None:
                reader = self._turn.readers[key] = make()
            return reader

    def _block_reader(self, pinned: bool) -> BlockReader | DeviceBlockReader:
        client, n = self._open_client(), self._batch_size
        if self._is_on_device:
            return DeviceBlockReader(self.batch_config, client, n, client.slot_count // n)
        in_worker = get_worker_info() is not None
        return BlockReader(
            self.batch_config, client, n, client.slot_count // n, self._pin if pinned else None, in_worker
        )

    def _pin(self, address: int) -> bool:
        """Register the slots of the open client, which begin at `address`, with CUDA, once."""
        medium = None if self._client is None else self._client.medium
        if self._unpin is None and medium is not None:
            self._unpin = pin(address, medium.num_slots * getattr(medium, "slot_stride", medium.slot_size))
        return self._unpin is not None

    def _stream(self) -> Stream:
        client = self._open_client()
        worker = get_worker_info()
        if self.ordered and worker is not None and worker.dataset is self:
            # The trainer makes another iterator of workers that live on. It has dropped batches of the last one, nobody knows which.
            if self._has_begun:
                self.load_state_dict({"positions": {}})
            self._has_begun = True
        assert self._course is not None
        self._last_stream = Stream(
            client,
            self.batch_config,
            self._model,
            self._course,
            self._own_positions(),
            Plan.of_this_worker(self._batch_size) if self.ordered else None,
            self._turn if self.ordered else Turn(),
            self.retry_delay,
            self.request_timeout,
            self._max_failures,
            self._first_wait_ms,
        )
        return self._last_stream

    def _change_course(self) -> None:
        """Have the client of this process, if there is one, order the product that is wanted now."""
        course = self._course
        if course is not None and self._client_pid == os.getpid():
            course.change()

    def _needs_watch(self) -> bool:
        """Return whether nobody tells this object that another product is wanted."""
        return os.getpid() != self._home_pid

    def _newest_stream(self) -> Stream:
        assert self._last_stream is not None
        return self._last_stream

    def _own_positions(self) -> dict[str, int]:
        """Return the positions of this process; those that a worker got from its trainer are of no use to it."""
        return self._positions.setdefault(os.getpid(), {})

    def _lock(self) -> threading.RLock:
        """Return what this process holds while it opens its client or changes what iterators share."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _make_client(self, **arguments: Any) -> Client:
        return Client(**arguments)

    def _open_client(self) -> Client:
        with self._lock():
            if self._client is None or self._client_pid != os.getpid():
                self._client, self._client_pid = self._new_client(), os.getpid()
                self._unpin, self._turn, self._course = None, Turn(), Course(self._client, self._model)
                self._watch = Watch(self._course, self._model) if self._needs_watch() else None
            return self._client

    def _new_client(self) -> Client:
        if self._is_on_device and get_worker_info() is not None:
            raise ConfigError(NO_WORKERS)
        block = self._batch_size if self.zero_copy else 1
        client = self._make_client(
            endpoint=self.endpoint,
            medium_cls=self.medium_cls,
            slot_size=self.batch_config.nbytes(),
            num_slots=self.num_slots // block * block,
            ordered=self.ordered,
            prefetch=self.prefetch,
            block=block,
            scribble=self.debug,
        )
        try:
            client.hello()
        except BaseException:
            client.close()
            raise
        if multiprocessing.parent_process() is not None:
            # A forked worker ends without running finalizers of what its parent's frames still hold.
            multiprocessing.util.Finalize(self, client.close, exitpriority=10)
        return client


def _checked_positions(state: Any) -> dict[str, int]:
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
    "CudaIpcMedium hands out tensors on a device, which a DataLoader's workers cannot send; use num_workers=0: batches are made by "
    "the device, and need no workers"
)
#: Sequence numbers have 64 bits; workers that take turns need some of them.
_MAX_POSITION = 2**48
