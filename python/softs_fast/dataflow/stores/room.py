"""Which calls may begin by the bytes of stores: what they bring and make is reserved, and the oldest rows have room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .ledger import StoreLedger

__all__ = ["Needs", "StoreRoom"]

_Bytes = Mapping[int, int]


@dataclass(frozen=True)
class Needs:
    """What a call adds to stores, by worker.

    Attributes:
        rows: bytes that its main part brings and makes; 0 while it is not known how many.
        shown: bytes of weights that its hooks put there for a while.
        is_first: whether it has to run for the next step to end: it has no rows, or rows of the oldest groups alone.
    """

    rows: _Bytes = field(default_factory=dict)
    shown: _Bytes = field(default_factory=dict)
    is_first: bool = True

    @property
    def total(self) -> dict[int, int]:
        """Bytes of both."""
        return {one: self.rows.get(one, 0) + self.shown.get(one, 0) for one in {*self.rows, *self.shown}}


class StoreRoom:
    """Reserves bytes of stores for calls that run.

    It cannot hang: other calls leave as many bytes as the oldest groups take with all of their columns, so calls on these
    always have room sooner or later, and the oldest groups go; then the next ones are the oldest. So none starves: a call
    that waits becomes one of them, and until then younger ones that need bytes of the same store do not overtake it. This
    holds as long as rows are not larger than the largest so far; docs/dataflow_failures.md says what happens then.

    Args:
        limit: bytes that the store of each worker may hold.
        ledger: what stores hold.
        needs: returns what a call adds, by its number.
        spare: returns the bytes that the oldest groups take in the store of a worker, with all columns; None while a
            function has not made its columns yet.
        owner_of: returns what has made a column, in words.

    Source: the banker's algorithm with one order of all customers, Dijkstra, EWD 623, 1977; the order is own.
    """

    def __init__(
        self,
        limit: int,
        ledger: StoreLedger,
        needs: Callable[[int], Needs],
        spare: Callable[[int], int | None],
        owner_of: Callable[[str], str] = "column {}".format,
    ) -> None:
        self.limit = limit
        self.ledger = ledger
        #: Bytes that calls have reserved, by worker; and those of calls on other rows than the oldest.
        self.reserved: Counter[int] = Counter()
        self._of_others: Counter[int] = Counter()
        self._needs = needs
        self._spare = spare
        self._owner_of = owner_of
        self._calls: dict[int, Needs] = {}
        # Stores for which an older call waits.
        self._short: set[int] = set()

    # --- Calls begin and end ---

    def begin_epoch(self) -> None:
        """Calls are looked at from the oldest on."""
        self._short.clear()

    def fits(self, call: int) -> bool:
        """Return whether a call may begin; if not, those behind it leave it the bytes that it lacks."""
        needs = self._needs(call)
        lacking = [
            worker
            for worker, n_bytes in needs.total.items()
            if not self.has(worker, n_bytes, is_first=needs.is_first)
        ]
        self._short.update(lacking)
        return not lacking

    def has(self, worker: int, n_bytes: int, *, is_first: bool) -> bool:
        """Return whether a store has room, for the oldest groups or for others."""
        if not self._has(worker, n_bytes) or is_first:
            return self._has(worker, n_bytes)
        spare = self._spare(worker)
        if spare is None or worker in self._short:
            return False
        others = self.ledger.n_bytes[worker] - self.ledger.of_first[worker] + self._of_others[worker]
        return others + n_bytes + spare <= self.limit

    def fits_alone(self, call: int) -> bool:
        """Return whether a call has room, whatever other calls will need."""
        return all(self._has(worker, n_bytes) for worker, n_bytes in self._needs(call).total.items())

    def reserve(self, call: int) -> None:
        """A call begins."""
        self._calls[call] = needs = self._needs(call)
        self._count(needs.total, needs, 1)

    def main_ended(self, call: int, worker: int) -> None:
        """A worker's part in the main step has ended: what it has made is in its store, and it makes nothing more."""
        needs = self._calls.get(call)
        if needs is not None and worker in needs.rows:
            self._count({worker: needs.rows[worker]}, needs, -1)
            left = {other: n for other, n in needs.rows.items() if other != worker}
            self._calls[call] = Needs(left, needs.shown, needs.is_first)

    def revise(self) -> None:
        """Rows turned out to be larger than was expected: calls that run reserve what they will make by that."""
        for call, old in list(self._calls.items()):
            now = self._needs(call).rows
            rows = {worker: max(n_bytes, now.get(worker, 0)) for worker, n_bytes in old.rows.items()}
            more = {worker: n_bytes - old.rows[worker] for worker, n_bytes in rows.items()}
            self._count(more, old, 1)
            self._calls[call] = Needs(rows, old.shown, old.is_first)

    def release(self, call: int) -> None:
        """All steps of a call have ended."""
        needs = self._calls.pop(call, None)
        if needs is not None:
            self._count(needs.total, needs, -1)

    # --- Words ---

    def why(self, calls: Iterable[tuple[int, str]]) -> str:
        """Return why none of some calls, by number and name, can ever begin."""
        said = []
        for call, name in calls:
            for worker, n_bytes in self._needs(call).total.items():
                if not self._has(worker, n_bytes):
                    said.append(f"call {call} of {name} needs {n_bytes} bytes in {self.line(worker)}")
        more = f"; and {len(said) - 3} more" if len(said) > 3 else ""
        return f"{'; '.join(said[:3])}{more}; nothing runs that would free some; use fewer rows, or raise store_bytes"

    def line(self, worker: int) -> str:
        """Return what is in a store, in words."""
        held: Counter[str] = Counter()
        for column, n_bytes in self.ledger.by_column(worker).items():
            held[self._owner_of(column)] += n_bytes
        of_rows = ", ".join(f"{n_bytes} of {name}" for name, n_bytes in held.most_common(5))
        return (
            f"the store of {store_name(worker)}, which has {self.limit}: {self.ledger.n_bytes[worker]} are held "
            f"({of_rows or 'nothing'}), {self.reserved[worker]} reserved"
        )

    # --- Inside ---

    def _has(self, worker: int, n_bytes: int) -> bool:
        # What brings nothing never waits, also if rows are larger than was expected.
        return not n_bytes or self.ledger.n_bytes[worker] + self.reserved[worker] + n_bytes <= self.limit

    def _count(self, n_bytes: _Bytes, needs: Needs, sign: int) -> None:
        for worker, n in n_bytes.items():
            self.reserved[worker] += sign * n
            if not needs.is_first:
                self._of_others[worker] += sign * n


def store_name(worker: int) -> str:
    """Return how a store is called."""
    return "the master" if worker < 0 else f"worker {worker}"
