"""How a master has elements of datasets read: by objects of this process, or by messages to worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from ..datasets.loader import Loader
from ..datasets.reading import ShardReader
from ..declare.datasets import Dataset
from ..declare.declaration import Declaration
from ..ids import element_id
from ..moves import DataManager
from ..objects import Objects
from ..values import cut, n_bytes_of
from ..wire.messages import ElementsRead, ReadElements
from ..worker.functions import Failure
from .backend import Loaded
from .notes import StoreNotes

__all__ = ["LocalElements", "LockstepElements", "RemoteElements"]


class LocalElements:
    """Reads all shards in this process, when they are asked for; see `ElementReads`.

    Args:
        declaration: of the flow.
        notes: get what stores would have.
    """

    reads_ahead = False

    def __init__(self, declaration: Declaration, notes: StoreNotes) -> None:
        self._datasets = tuple(declaration.datasets.values())
        self._notes = notes
        #: By number of the dataset and worker.
        self._readers: dict[tuple[int, int], ShardReader] = {}

    def open(self, objects: Objects) -> None:
        """Have the roles give all shards.

        Raises:
            Exception: what a method of a role raised.
        """
        for source, one in enumerate(self._datasets):
            method = getattr(objects[one.role], one.method)
            for shard, worker in enumerate(one.heads):
                self._readers[source, worker] = ShardReader(one, method, shard, worker)

    def close(self) -> None:
        """Drop them."""
        self._readers.clear()

    def read(self, worker: int, request: int, source: int, numbers: Sequence[int]) -> list[Loaded]:
        """Read elements at once, up to the end of the shard or an error."""
        found = self._readers[source, worker].read(numbers)
        names = self._datasets[source].columns
        columns = [cut(name, values, len(values)) for name, values in zip(names, found.columns, strict=True)]
        sizes = [sum(map(n_bytes_of, values)) for values in zip(*columns, strict=True)]
        for name, values in zip(names, columns, strict=True):
            ids = [element_id(source, number) for number in numbers[: len(values)]]
            self._notes.put(worker, name, ids, values)
        return [Loaded(request, columns, sizes, found.tags, found.length, found.failure)]

    def n_elements(self, source: int) -> int | None:
        """Return how many elements all shards of a dataset have; None if one of them is no sequence."""
        return _sum([one.n_elements for (number, _), one in self._readers.items() if number == source])


class LockstepElements:
    """Has each worker of this process read the shards of which it is the head, into its store; see `ElementReads`.

    Args:
        declaration: of the flow.
        in_thread: runs something in the thread of a worker, and returns what that returns.
        notes: get what stores have.
    """

    reads_ahead = False

    def __init__(
        self,
        declaration: Declaration,
        in_thread: Callable[[int, Callable[[], Any]], Any],
        notes: StoreNotes,
    ) -> None:
        self._datasets = tuple(declaration.datasets.values())
        self._in_thread = in_thread
        self._notes = notes
        self._loaders: dict[int, Loader] = {}
        self._lengths: dict[int, dict[int, int | None]] = {}

    def setup(self, worker: int, declaration: Declaration, store: DataManager, objects: Objects) -> None:
        """Have the roles of a worker give their shards, in the thread of this worker.

        Args:
            worker: its number.
            declaration: of the flow that it has built.
            store: of its rows.
            objects: of its roles.

        Raises:
            Exception: what a method of a role raised.
        """
        self._loaders[worker] = Loader(declaration, worker, store, lambda message: None)
        self._lengths[worker] = self._loaders[worker].setup(objects)

    def close(self) -> None:
        """Drop the shards."""
        self._loaders.clear()
        self._lengths.clear()

    def read(self, worker: int, request: int, source: int, numbers: Sequence[int]) -> list[Loaded]:
        """Read elements at once, up to the end of the shard or an error."""
        wanted = ReadElements(request, source, tuple(numbers))
        answer: ElementsRead = self._in_thread(worker, lambda: self._loaders[worker].answer(wanted))
        _note(self._notes, worker, self._datasets, answer, source, numbers)
        return [_loaded(answer)]

    def n_elements(self, source: int) -> int | None:
        """Return how many elements all shards of a dataset have; None if one of them is no sequence."""
        return _sum([self._lengths[worker][source] for worker in self._datasets[source].heads])


class RemoteElements:
    """Has heads in worker processes read, and knows which requests they have not answered; see `ElementReads`.

    Args:
        declaration: of the flow.
        tell: sends a worker a message; returns False if it has left.
        ask: returns what a worker has published.
    """

    reads_ahead = True

    def __init__(
        self,
        declaration: Declaration,
        tell: Callable[[int, ReadElements], bool],
        ask: Callable[[int, str], bytes],
    ) -> None:
        self._datasets = tuple(declaration.datasets.values())
        self._tell = tell
        self._ask = ask
        #: By worker and number of the request, the dataset and the elements.
        self._open: dict[int, dict[int, tuple[int, Sequence[int]]]] = {}

    def __bool__(self) -> bool:
        """Whether a head has yet to answer."""
        return bool(self._open)

    def read(self, worker: int, request: int, source: int, numbers: Sequence[int]) -> list[Loaded]:
        """Send a request to the head of a shard, unless it has left."""
        if self._tell(worker, ReadElements(request, source, tuple(numbers))):
            self._open.setdefault(worker, {})[request] = source, numbers
        return []

    def n_elements(self, source: int) -> int | None:
        """Return how many elements all shards of a dataset have, as their heads have published it.

        Raises:
            FlowError: a worker does not answer.
        """
        heads = self._datasets[source].heads
        return _sum([msgpack.unpackb(self._ask(worker, f"dataset {source}")) for worker in heads])

    def answered(self, worker: int, message: ElementsRead, notes: StoreNotes) -> list[Loaded]:
        """Return what an answer says; nothing if that worker was not asked. What its store has is noted."""
        mine = self._open.get(worker, {})
        if message.request not in mine:
            return []
        numbers = mine.pop(message.request)
        if not mine:
            del self._open[worker]
        _note(notes, worker, self._datasets, message, *numbers)
        return [_loaded(message)]

    def lose(self, worker: int) -> None:
        """A worker has left: it answers nothing more."""
        self._open.pop(worker, None)

    def close(self) -> None:
        """All workers have left."""
        self._open.clear()


def _loaded(message: ElementsRead) -> Loaded:
    failure = Failure(*message.failure) if message.failure is not None else None
    return Loaded(
        message.request, message.columns.places, message.sizes, message.tags, message.length, failure
    )


def _note(
    notes: StoreNotes,
    worker: int,
    datasets: Sequence[Dataset],
    message: ElementsRead,
    source: int,
    numbers: Sequence[int],
) -> None:
    """Note what the store of a head has of elements that it was asked for."""
    for column, places in zip(datasets[source].columns, message.columns, strict=False):
        notes.put(worker, column, [element_id(source, number) for number in numbers[: len(places)]], places)


def _sum(lengths: Sequence[int | None]) -> int | None:
    return None if None in lengths else sum(one or 0 for one in lengths)
