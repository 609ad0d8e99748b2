"""How many bytes the store of each worker holds, as far as the master has heard. No clock, no process, no tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["StoreLedger"]


class StoreLedger:
    """Bytes of values by row, worker and column. Work for one value does not depend on the number of rows.

    It follows what stores do: a value that is put again replaces the one before, and rows are freed with all columns.
    """

    def __init__(self) -> None:
        #: By worker, of all that its store holds.
        self.n_bytes: Counter[int] = Counter()
        #: By worker, of rows of the oldest groups alone.
        self.of_first: Counter[int] = Counter()
        #: Rows of the oldest groups.
        self.first: set[int] = set()
        self._rows: dict[int, dict[int, dict[str, int]]] = {}

    def put(self, worker: int, column: str, ids: Sequence[int], sizes: Sequence[int]) -> None:
        """A store has values.

        Args:
            worker: of the store.
            column: of the values.
            ids: of their rows, or by which they are freed.
            sizes: bytes that each takes.
        """
        rows, first, total, of_first = self._rows, self.first, 0, 0
        for row_id, size in zip(ids, sizes, strict=True):
            own = rows.get(row_id)
            if own is None:
                own = rows[row_id] = {}
            columns = own.get(worker)
            if columns is None:
                columns = own[worker] = {}
            more = size - columns.get(column, 0)
            columns[column] = size
            total += more
            if row_id in first:
                of_first += more
        self.n_bytes[worker] += total
        self.of_first[worker] += of_first

    def free(self, worker: int, ids: Iterable[int]) -> None:
        """A store has dropped rows; those of which it has nothing are skipped."""
        for row_id in ids:
            own = self._rows.get(row_id)
            columns = own.pop(worker, None) if own is not None else None
            if columns is None:
                continue
            size = sum(columns.values())
            self.n_bytes[worker] -= size
            if row_id in self.first:
                self.of_first[worker] -= size
            if not own:
                del self._rows[row_id]

    def lose(self, worker: int) -> None:
        """A store has ended, with all that it held. It looks at all rows."""
        for row_id in [row_id for row_id, own in self._rows.items() if worker in own]:
            own = self._rows[row_id]
            del own[worker]
            if not own:
                del self._rows[row_id]
        self.n_bytes.pop(worker, None)
        self.of_first.pop(worker, None)

    def promote(self, ids: Iterable[int]) -> None:
        """Rows are of the oldest groups now."""
        for row_id in ids:
            self.first.add(row_id)
            for worker, columns in self._rows.get(row_id, {}).items():
                self.of_first[worker] += sum(columns.values())

    def demote(self, ids: Iterable[int]) -> None:
        """Rows have gone from the flow; what is held of them is not that of the oldest groups any more."""
        for row_id in ids:
            if row_id in self.first:
                self.first.discard(row_id)
                for worker, columns in self._rows.get(row_id, {}).items():
                    self.of_first[worker] -= sum(columns.values())

    def held(self, row_id: int, worker: int) -> dict[str, int]:
        """Return the bytes of each column of a row that a store holds."""
        return self._rows.get(row_id, {}).get(worker, {})

    def by_column(self, worker: int) -> Counter[str]:
        """Return the bytes of each column that a store holds. It looks at all rows."""
        found: Counter[str] = Counter()
        # Copies: another thread may ask while rows come and go.
        for own in list(self._rows.values()):
            found.update(dict(own.get(worker, {})))
        return found

    def __len__(self) -> int:
        """Return of how many rows something is held."""
        return len(self._rows)

    def clear(self) -> None:
        """All stores have ended."""
        for one in (self.n_bytes, self.of_first, self.first, self._rows):
            one.clear()
