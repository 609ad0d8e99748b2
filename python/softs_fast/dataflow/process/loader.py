"""The thread of a worker that reads its shards while functions compute, and keeps the values in the worker's store."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ...errors import PeerLost, WireError
from ..link.elements import ElementsRead, ReadElements
from .shards import Shards

__all__ = ["Loader"]

#: How long the end of a worker waits for an element that is being read, seconds.
_END_S = 2.0
#: Requests that are remembered; a head has a few that it has not answered.
_MOST_KNOWN = 1024


class Loader:
    """Reads the shards of one worker in a thread, which begins with the first request.

    Args:
        shards: Shards of the worker.
        send: Function that sends an answer to the master; the thread calls it.
    """

    def __init__(self, shards: Shards, send: Callable[[ElementsRead], None]) -> None:
        self._shards = shards
        self._send = send
        self._requests: queue.SimpleQueue[ReadElements | None] = queue.SimpleQueue()
        #: Numbers of the last requests.
        self._known: deque[int] = deque(maxlen=_MOST_KNOWN)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def read(self, request: ReadElements) -> None:
        """Have elements read; what is asked first is read first. A request that was here before, by its number, is dropped.

        Raises:
            WireError: this worker has no shard of that dataset.
        """
        self._shards.check(request)
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
                message, _ = self._shards.answer(request, lambda: self._is_closed)
                if self._is_closed:
                    return
                try:
                    self._send(message)
                except WireError as error:
                    self._send(self._shards.failed(request, error))
