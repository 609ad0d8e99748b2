"""How a master has elements of datasets read: by objects of this process, or by messages to worker processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgpack

from ..declare.declaration import Declaration
from ..link.messages import ElementsRead, ReadElements
from ..process.objects import Objects
from ..process.shards import Shards
from ..store.values import Value, cut
from .backend import Loaded

__all__ = ["LocalElements", "RemoteElements"]


class LocalElements:
    """Reads all shards in this process, when they are asked for; see `ElementReads`.

    Args:
        declaration: Declaration of the flow.
    """

    reads_ahead = False

    def __init__(self, declaration: Declaration) -> None:
        self._datasets = tuple(declaration.datasets.values())
        self._declaration = declaration
        self._shards: dict[int, Shards] = {}
        self._lengths: list[dict[int, int | None]] = []

    def open(self, objects: Objects) -> None:
        """Have the roles give all shards.

        Raises:
            Exception: what a method of a role raised.
        """
        for worker in sorted({head for one in self._datasets for head in one.heads}):
            self._shards[worker] = Shards(self._declaration, worker, _keep, lambda ids: None)
            self._lengths.append(self._shards[worker].setup(objects))

    def close(self) -> None:
        """Drop them."""
        self._shards.clear()
        self._lengths.clear()

    def read(self, worker: int, request: int, source: int, numbers: Sequence[int]) -> list[Loaded]:
        """Read elements at once, up to the end of the shard or an error."""
        return [Loaded(*self._shards[worker].answer(ReadElements(request, source, tuple(numbers))))]

    def n_elements(self, source: int) -> int | None:
        """Return how many elements all shards of a dataset have; None if one of them is no sequence."""
        return _sum([lengths[source] for lengths in self._lengths if source in lengths])


def _keep(column: str, ids: Sequence[int], values: Sequence[Value]) -> list[Value]:
    """Copy values of a column; the copies are their places, as a shard may change its own."""
    return cut(column, values, len(values))


class RemoteElements:
    """Has heads in worker processes read, and knows which requests they have not answered; see `ElementReads`.

    Args:
        declaration: Declaration of the flow.
        tell: Function that sends a worker a message; it returns False if the worker has left.
        ask: Function that returns what a worker has published.
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
        #: By worker the numbers of requests.
        self._open: dict[int, set[int]] = {}

    def __bool__(self) -> bool:
        """Whether a head has yet to answer."""
        return bool(self._open)

    def read(self, worker: int, request: int, source: int, numbers: Sequence[int]) -> list[Loaded]:
        """Send a request to the head of a shard, unless it has left."""
        if self._tell(worker, ReadElements(request, source, tuple(numbers))):
            self._open.setdefault(worker, set()).add(request)
        return []

    def n_elements(self, source: int) -> int | None:
        """Return how many elements all shards of a dataset have, as their heads have published it.

        Raises:
            FlowError: a worker does not answer.
        """
        heads = self._datasets[source].heads
        return _sum([msgpack.unpackb(self._ask(worker, f"dataset {source}")) for worker in heads])

    def answered(self, worker: int, message: ElementsRead) -> list[Loaded]:
        """Return what an answer says; nothing if that worker was not asked."""
        mine = self._open.get(worker, set())
        if message.request not in mine:
            return []
        mine.discard(message.request)
        if not mine:
            del self._open[worker]
        return [Loaded(message)]

    def lose(self, worker: int) -> None:
        """A worker has left: it answers nothing more."""
        self._open.pop(worker, None)

    def close(self) -> None:
        """All workers have left."""
        self._open.clear()


def _sum(lengths: Sequence[int | None]) -> int | None:
    return None if None in lengths else sum(one or 0 for one in lengths)
