"""Where the values of rows are, and when their memory may go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..master.master import DRIVER
from ..workers.backend import Backend

__all__ = ["HeldRows"]


class HeldRows:
    """Places of values by row and column. A row that has gone keeps its memory while a step reads it.

    Args:
        backend: Backend that has the values.
    """

    #: Number of this process among the holders that the master counts; worker w has w + 1.
    here = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._places: dict[int, dict[str, tuple[Any, int]]] = {}
        self._holders: dict[int, set[int]] = {}
        self._uses: Counter[int] = Counter()
        self._gone: set[int] = set()
        # Rows that were made of one element of a dataset, which its head keeps once, by worker and id of the element.
        self._elements: dict[int, tuple[int, int]] = {}
        self._rows: dict[tuple[int, int], list[int]] = {}

    @staticmethod
    def holder(worker: int) -> int:
        """Return the number that the master counts a worker by."""
        return worker - DRIVER

    def admit(self, ids: Iterable[int]) -> None:
        """Rows are new."""
        for row_id in ids:
            self._places[row_id] = {}
            self._holders[row_id] = set()

    def bind(self, ids: Sequence[int], worker: int, element: int) -> None:
        """A worker keeps the values of an element of a dataset for these rows, until all of them have gone."""
        self._rows[worker, element] = list(ids)
        for row_id in ids:
            self._elements[row_id] = (worker, element)

    def element(self, row_id: int) -> tuple[int, int] | None:
        """Return the worker and the id of the element that a row was made of; None: it is of another source."""
        return self._elements.get(row_id)

    def elements_of(self, worker: int) -> list[int]:
        """Return the elements that a worker keeps, or has kept, for rows."""
        return [element for head, element in self._rows if head == worker]

    def rows_of(self, worker: int, element: int) -> tuple[int, ...]:
        """Return the rows of an element that are there; none if all have gone."""
        return tuple(self._rows.get((worker, element), ()))

    def write(self, column: str, ids: Sequence[int], places: Sequence[Any], worker: int) -> None:
        """A worker has made a column; the values of rows that have gone are freed there."""
        gone = []
        for row_id, place in zip(ids, places, strict=True):
            if row_id in self._places:
                self._places[row_id][column] = (place, worker)
                self._holders[row_id].add(worker)
            else:
                gone.append(row_id)
        if gone:
            self._backend.free(worker, gone)

    def note(self, worker: int, ids: Sequence[int]) -> None:
        """A worker has values of rows that are of no use; they go with the rows."""
        for row_id in ids:
            if row_id in self._holders:
                self._holders[row_id].add(worker)
        gone = [row_id for row_id in ids if row_id not in self._holders]
        if gone:
            self._backend.free(worker, gone)

    def lose(self, worker: int) -> None:
        """A worker is gone with all values that it had, also those that others may have mapped."""
        for row_id, columns in self._places.items():
            for column in [name for name, (_, holder) in columns.items() if holder == worker]:
                del columns[column]
            self._holders[row_id].discard(worker)

    def columns(self, row_id: int) -> list[str]:
        """Return the columns that a row has."""
        return list(self._places.get(row_id, {}))

    def places(self, ids: Iterable[int], column: str) -> list[Any]:
        """Return where a column of rows is."""
        return [self._places[row_id][column][0] for row_id in ids]

    def keep(self, ids: Iterable[int]) -> None:
        """A step will read rows."""
        self._uses.update(ids)

    def release(self, ids: Iterable[int]) -> None:
        """A step reads rows no more."""
        ended = []
        for row_id in ids:
            self._uses[row_id] -= 1
            if not self._uses[row_id]:
                del self._uses[row_id]
                if row_id in self._gone:
                    ended.append(row_id)
        self._gone.difference_update(ended)
        self.free(ended)

    def free(self, ids: Iterable[int]) -> None:
        """Rows have gone: their values go where no step reads them, otherwise when those steps have ended."""
        by_worker: dict[int, list[int]] = {}
        for row_id in ids:
            if self._uses[row_id]:
                self._gone.add(row_id)
                continue
            self._places.pop(row_id, None)
            for worker in self._holders.pop(row_id, ()):
                by_worker.setdefault(worker, []).append(row_id)
            element = self._elements.pop(row_id, None)
            if element is not None:
                self._rows[element].remove(row_id)
                if not self._rows[element]:
                    del self._rows[element]
                    by_worker.setdefault(element[0], []).append(element[1])
        for worker, gone in by_worker.items():
            self._backend.free(worker, gone)

    def clear(self) -> None:
        """All rows have gone with the flow."""
        for rows in (self._places, self._holders, self._uses, self._gone, self._elements, self._rows):
            rows.clear()
