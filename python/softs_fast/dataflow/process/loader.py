"""The thread of a worker that reads its shards while functions compute, and keeps the values in the worker's store."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ...errors import FlowError, PeerLost, WireError
from ..declare.declaration import Declaration
from ..link.columns import Columns
from ..link.elements import ElementsRead, ReadElements
from ..link.results import Failure
from ..store import DataManager
from ..store.ids import element_id
from ..store.values import n_bytes_of
from .objects import Objects
from .shards import ShardReader

__all__ = ["Loader"]

#: How long the end of a worker waits for an element that is being read, seconds.
_END_S = 2.0
#: Requests that are remembered; a head has a few that it has not answered.
_MOST_KNOWN = 1024


class Loader:
    """The shards of which one worker is the head. The thread begins with the first request.

    Args:
        declaration: Declaration of the flow.
        worker: Number of this worker.
        store: Store of this process.
        send: Function that sends an answer to the master; the thread calls it.
    """

    def __init__(
        self,
        declaration: Declaration,
        worker: int,
        store: DataManager,
        send: Callable[[ElementsRead], None],
    ) -> None:
        self._declaration = declaration
        self._worker = worker
        self._store = store
        self._send = send
        self._readers: dict[int, ShardReader] = {}
        self._requests: queue.SimpleQueue[ReadElements | None] = queue.SimpleQueue()
        #: Numbers of the last requests.
        self._known: deque[int] = deque(maxlen=_MOST_KNOWN)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def setup(self, objects: Objects) -> dict[int, int | None]:
        """Have the roles give their shards; returns how many elements each has, by the number of its dataset.

        Raises:
            Exception: what a method of a role raised.
        """
        for source, one in enumerate(self._declaration.datasets.values()):
            if self._worker in one.heads:
                method = getattr(objects[one.role], one.method)
                self._readers[source] = ShardReader(one, method, one.heads.index(self._worker), self._worker)
        return {source: reader.n_elements for source, reader in self._readers.items()}

    def read(self, request: ReadElements) -> None:
        """Have elements read; what is asked first is read first. A request that was here before, by its number, is dropped.

        Raises:
            WireError: this worker has no shard of that dataset.
        """
        if request.source not in self._readers:
            raise WireError(f"worker {self._worker} is no head of dataset {request.source}")
        if request.request in self._known:
            return  # what was read for it would be replaced, and the master has its places
        self._known.append(request.request)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="softs-flow-data", daemon=True)
            self._thread.start()
        self._requests.put(request)

    def close(self) -> None:
        """End the thread; idempotent. An element that is being read then is not kept."""
        self._is_closed = True
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        with suppress(PeerLost):
            while (request := self._requests.get()) is not None and not self._is_closed:
                message = self._answer(request)
                if self._is_closed:
                    return
                try:
                    self._send(message)
                except WireError as error:
                    self._send(self._failed(request, error))

    def _answer(self, request: ReadElements) -> ElementsRead:
        """Read elements, and keep them; returns what is said of them, also if they cannot be read or kept."""
        dataset = list(self._declaration.datasets.values())[request.source]
        found = self._readers[request.source].read(request.numbers, lambda: self._is_closed)
        ids = [element_id(request.source, number) for number in request.numbers[: len(found.tags)]]
        try:
            columns = {
                name: self._store.put(name, ids, values)
                for name, values in zip(dataset.columns, found.columns, strict=True)
            }
        except Exception as error:
            return self._failed(request, error)  # the store is full or closed
        sizes = [[n_bytes_of(value) for value in values] for values in found.columns]
        return ElementsRead(
            request.request,
            Columns.of(columns),
            tuple(map(sum, zip(*sizes, strict=True))),
            tuple(found.tags),
            found.length,
            found.failure,
        )

    def _failed(self, request: ReadElements, error: Exception) -> ElementsRead:
        """Keep nothing of a request, and return why."""
        with suppress(FlowError):
            self._store.free([element_id(request.source, number) for number in request.numbers])
        dataset = list(self._declaration.datasets.values())[request.source]
        where = f"{dataset.name} on worker {self._worker}, elements {list(request.numbers[:8])}: "
        columns = Columns.of(dict.fromkeys(dataset.columns, ()))
        return ElementsRead(request.request, columns, failure=Failure.of(error, where))
