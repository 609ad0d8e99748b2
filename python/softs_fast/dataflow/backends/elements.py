"""Requests for elements of datasets that worker processes have not answered yet."""

from __future__ import annotations

from collections.abc import Sequence

from ..wire.links import MasterLink
from ..wire.messages import ElementsRead, ReadElements
from ..worker.functions import Failure
from .backend import Loaded

__all__ = ["OpenReads"]


class OpenReads:
    """Of each worker the requests that it has not answered."""

    def __init__(self) -> None:
        self._requests: dict[int, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._requests)

    def ask(self, link: MasterLink, worker: int, request: int, source: int, numbers: Sequence[int]) -> None:
        """Send a request to the head of a shard."""
        self._requests.setdefault(worker, set()).add(request)
        link.send(worker, ReadElements(request, source, tuple(numbers)))

    def answered(self, worker: int, message: ElementsRead) -> list[Loaded]:
        """Return what an answer says; nothing if that worker was not asked."""
        mine = self._requests.get(worker, set())
        if message.request not in mine:
            return []
        mine.discard(message.request)
        if not mine:
            del self._requests[worker]
        failure = Failure(*message.failure) if message.failure is not None else None
        return [
            Loaded(message.request, message.columns, message.sizes, message.tags, message.length, failure)
        ]

    def lose(self, worker: int) -> None:
        """A worker has left: it answers nothing more."""
        self._requests.pop(worker, None)

    def clear(self) -> None:
        """All workers have left."""
        self._requests.clear()
