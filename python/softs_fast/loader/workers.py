"""Batches of torch's worker processes: the trainer asks for each by the version of its product and its first sample.

So the trainer alone knows the position of a stream, and workers keep nothing between two requests but what they have
ordered ahead.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator
from ctypes import Array, c_uint32, c_uint64
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawValue
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory

from ..tensors import for_later
from .endless import EndlessDataset
from .plan import IterationPlan
from .product.subscription import Stride, remember
from .sample_iterator import Reader, Stream

__all__ = ["BatchesOfWorkers", "WorkerOptions"]


@dataclasses.dataclass(frozen=True)
class WorkerOptions:
    """The arguments of DataLoader that concern its workers."""

    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    in_order: bool


class _Request(NamedTuple):
    """A batch that the trainer asks for.

    Attributes:
        attempt: Counts the errors of this iterator; a request of an earlier attempt is over, and its answer is dropped.
        version: Version of the product, see `ProductSource`.
        first: Number of the first sample in an ordered stream, else 0.
    """

    attempt: int
    version: int
    first: int


@dataclasses.dataclass
class _Answer:
    """A batch, or why there is none; neither where the request was over before the batch was complete.

    A worker packs its batch by itself: a queue of `multiprocessing` would do it in another thread, and drop a batch that
    cannot be pickled, for which the trainer would wait for ever.
    """

    request: _Request
    product: str = ""
    packed: bytes | None = None
    batch: Any = None
    error: ExceptionWrapper | None = None

    def unpack(self) -> Any:
        """Return the batch; None if there is none."""
        if self.packed is not None:
            self.batch, self.packed = pickle.loads(self.packed), None
        return self.batch

    def pin_memory(self) -> _Answer:
        """Pin the batch; torch calls it, in a thread of the trainer."""
        self.batch = pin_memory(self.unpack())  # type: ignore[no-untyped-call]
        return self


class BatchesOfWorkers:
    """The batches that worker processes make of a dataset, in the trainer. All iterators of a loader share one.

    Args:
        dataset: Dataset that is sent to the workers, and has the positions of this process.
        plan: How batches are made.
        options: Options of the workers.
    """

    def __init__(self, dataset: EndlessDataset, plan: IterationPlan, options: WorkerOptions) -> None:
        self._source = dataset.source
        self._check = dataset.check_ranks
        self._is_ordered = dataset.ordered
        self._positions = dataset.own_positions()
        self._n_rows = plan.batch_size or 1
        self._record = plan.record
        self._check()
        # One thread at a time takes batches, and with them makes requests.
        self._lock = threading.Lock()
        # In memory that workers share: a request of an earlier attempt must not keep a worker waiting.
        attempt = RawValue(c_uint32)
        used = None if dataset.ordered else dataset.begin_workers(options.num_workers)
        self._requests = _Requests(dataset, self._positions, self._n_rows, attempt)
        # Workers make batches on the host, also those that inherit the default device of a fork's parent.
        with torch.device("cpu"):
            self._answers = iter(
                DataLoader(
                    _RequestedBatches(dataset, plan, options.num_workers, attempt, used),
                    batch_size=None,
                    sampler=self._requests,
                    collate_fn=_unchanged,
                    **{field.name: getattr(options, field.name) for field in dataclasses.fields(options)},
                )
            )

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            self._check()
            while True:
                try:
                    # torch also unpacks batches that are due after this one.
                    with for_later():
                        answer: _Answer = next(self._answers)
                        # Also one that is not due: the worker holds its memory until then.
                        batch = answer.unpack()
                    request, product = answer.request, answer.product
                    is_due = request[:2] == (self._requests.attempt, self._source.version())
                    if answer.error is not None and is_due:
                        answer.error.reraise()  # type: ignore[no-untyped-call]
                except BaseException as error:
                    # Its batch is due again; what was requested after it is of no use in an ordered stream.
                    self._requests.restart()
                    # Frames of torch have the error in a variable: with them in its traceback, this object would be
                    # freed by the garbage collector, after the queues of the workers, which would then not be told to
                    # end.
                    raise error.with_traceback(None)  # noqa: B904, it is the same error
                if batch is None or not is_due:
                    continue
                if self._is_ordered and request.first != self._positions.get(product, 0):
                    # The product changed while the request was made: it has the position of another one.
                    self._requests.restart()
                    continue
                position = remember(self._positions, product)
                if self._record is not None:
                    self._record(product, position, batch)
                self._positions[product] += self._n_rows
                return batch


class _Requests:
    """What torch takes for a sampler: the requests for the batches of the product that is wanted, in order."""

    def __init__(
        self, dataset: EndlessDataset, positions: dict[str, int], n_rows: int, attempt: c_uint32
    ) -> None:
        self._attempt = attempt
        self._source = dataset.source
        self._is_ordered = dataset.ordered
        self._positions = positions
        self._n_rows = n_rows
        self._last: _Request | None = None

    def __iter__(self) -> Iterator[_Request]:
        return self

    def __next__(self) -> _Request:
        version = self._source.version()
        last = self._last
        if not self._is_ordered:
            first = 0
        elif last is not None and last[:2] == (self.attempt, version):
            first = last.first + self._n_rows
        else:
            first = self._positions.get(self._source.read(), 0)
        self._last = _Request(self.attempt, version, first)
        return self._last

    @property
    def attempt(self) -> int:
        """How often it was restarted."""
        return self._attempt.value

    def restart(self) -> None:
        """Request again what was not handed out."""
        self._attempt.value += 1


class _RequestedBatches(Dataset[_Answer]):
    """Makes the batches that are requested, in a worker.

    Args:
        dataset: Dataset, which opens a client here.
        plan: How batches are made.
        n_workers: Number of workers that take turns.
        attempt: Current attempt of the iterator; requests of an earlier one are over.
        used: Array in which each worker notes how many numbers of an unordered stream are used.
    """

    def __init__(
        self,
        dataset: EndlessDataset,
        plan: IterationPlan,
        n_workers: int,
        attempt: c_uint32,
        used: Array[c_uint64] | None,
    ) -> None:
        config = dataset.batch_config
        stack = default_collate if config.ragged is None else config.collate
        make_batch = plan.make_batch or (default_convert if plan.batch_size is None else stack)
        self._dataset = dataset
        # torch copies batches on their way to the trainer; they must own their memory, which slots do not.
        self._plan = IterationPlan(batch_size=plan.batch_size, make_batch=make_batch)
        self._n_rows = plan.batch_size or 1
        self._n_workers = n_workers
        self._attempt = attempt
        self._used = used
        self._opened: tuple[Stream, Reader] | None = None
        self._due: tuple[int, int] | None = None

    def __getitem__(self, request: _Request) -> _Answer:
        if self._is_over(request) or self._dataset.source.version() != request.version:
            return _Answer(request)
        try:
            try:
                taken = self._take(request)
            except SystemExit as end:
                # torch would say after seconds that the worker has ended, and not why.
                raise RuntimeError(f"sys.exit({end.code!r}) was called in a worker process") from end
            if taken is None:
                return _Answer(request)
            product, batch = taken
            return _Answer(request, product, bytes(ForkingPickler.dumps(batch)))
        except Exception:
            # As torch does it, but with the request: the trainer may have made others since.
            error = ExceptionWrapper(where="in a worker process of the loader")  # type: ignore[no-untyped-call]
            return _Answer(request, error=error)

    def _is_over(self, request: _Request) -> bool:
        return self._attempt.value != request.attempt

    def _take(self, request: _Request) -> tuple[str, Any] | None:
        version, first = request.version, request.first
        if self._used is not None:
            self._dataset.note_used(self._used, self._n_rows)
        if self._opened is None or self._due != (version, first):
            n_rows = self._n_rows
            stride = Stride(first, n_rows, n_rows * self._n_workers)
            self._opened = self._dataset.begin(self._plan, {}, stride)
            self._opened[0].restart()
        stream, reader = self._opened
        self._due = None
        taken = stream.take_of(version, reader, lambda: self._is_over(request))
        if taken is not None:
            # Workers are asked in turns, so this is the next request, and the samples that are ordered ahead are the
            # ones it needs.
            self._due = (version, first + self._n_rows * self._n_workers if self._dataset.ordered else 0)
        return taken


def _unchanged(answer: Any) -> Any:
    return answer
