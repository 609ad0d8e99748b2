"""Calls that wait for tickets, the oldest first; those with the same participants wait together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush

from .steps import CallState

__all__ = ["ReadyCalls"]

#: All participants of a call, those of its main step, and whether it restores a worker.
_Alike = tuple[frozenset[int], frozenset[int], bool]
#: Age and number of a call, by which calls are ordered.
_Entry = tuple[int, int]


class ReadyCalls:
    """Calls that wait for tickets.

    Work for a call does not depend on how many wait, but for the logarithm in a heap: of calls with the same participants
    only the oldest is looked at while it cannot begin.
    """

    def __init__(self) -> None:
        self._calls: dict[int, CallState] = {}
        # Entries of calls that were removed stay until they are the oldest.
        self._heaps: dict[_Alike, list[_Entry]] = {}

    def add(self, call: CallState) -> None:
        """Add a call."""
        self._calls[call.number] = call
        heap = self._heaps.setdefault((call.workers, call.mains, call.restores), [])
        heappush(heap, (call.oldest, call.number))

    def remove(self, number: int) -> CallState | None:
        """Remove a call by its number, and return it; None if there is none."""
        return self._calls.pop(number, None)

    def __contains__(self, number: int) -> bool:
        return number in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[CallState]:
        """Yield all calls, the oldest first."""
        return iter(sorted(self._calls.values(), key=lambda call: (call.oldest, call.number)))

    def beyond(self, workers: Collection[int]) -> list[CallState]:
        """Return the calls in which a worker takes part that is not among these."""
        known = frozenset(workers)
        if all(participants <= known for participants, _, _ in self._heaps):
            return []
        return [call for call in self._calls.values() if not call.workers <= known]

    def visit(self, begin: Callable[[CallState], bool]) -> None:
        """Have calls begin, the oldest first.

        Args:
            begin: removes a call and returns True, or returns False: then younger calls alike are not asked.
        """
        heads: list[tuple[_Entry, int, list[_Entry]]] = []
        for place, (alike, heap) in enumerate(list(self._heaps.items())):
            if self._has_next(heap):
                heads.append((heap[0], place, heap))
            else:
                del self._heaps[alike]
        heapify(heads)
        while heads:
            entry, place, heap = heappop(heads)
            if begin(self._calls[entry[1]]) and self._has_next(heap):
                heappush(heads, (heap[0], place, heap))

    def _has_next(self, heap: list[_Entry]) -> bool:
        """Return whether a heap has a call that is there; the entries before it go."""
        while heap and heap[0][1] not in self._calls:
            heappop(heap)
        return bool(heap)
