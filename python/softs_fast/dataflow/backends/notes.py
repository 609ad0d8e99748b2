"""What a backend notes of the stores of workers, for a flow with a bound of their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import FlowError
from ..ids import state_id
from ..moves import Place
from ..moves.extents import bytes_in_store
from ..stores.ledger import StoreLedger
from ..worker.functions import Outcome
from ..worker.part import weights_column

__all__ = ["StoreNotes"]

#: Ids from here on are those of weights that hooks show.
_FIRST_SHOWN = state_id(0)


class StoreNotes:
    """Tells a ledger what stores have got and dropped, as messages say it. Without one it does nothing."""

    def __init__(self) -> None:
        self.ledger: StoreLedger | None = None
        #: By worker the most bytes of weights that it has kept for a hook.
        self.largest_shown: dict[int, int] = {}

    def put(self, worker: int, column: str, ids: Sequence[int], places: Sequence[Any]) -> Sequence[Any]:
        """A store has values of a column, at places, or that are themselves the places; returns these."""
        if self.ledger is not None:
            self.ledger.put(worker, column, ids, [bytes_in_store(one) for one in places])
            if ids and ids[0] >= _FIRST_SHOWN:
                size = sum(self.ledger.held(ids[0], worker).values())
                self.largest_shown[worker] = max(size, self.largest_shown.get(worker, 0))
        return places

    def check(self, worker: int, outcome: Outcome, limit: int | None) -> None:
        """Check that there is room for columns that a function has made, where no store does.

        Raises:
            FlowError: there is none.
        """
        if self.ledger is None or limit is None:
            return
        total = sum(bytes_in_store(value) for values in outcome.columns.values() for value in values)
        free = limit - self.ledger.n_bytes[worker]
        if total > free:
            names = ", ".join(outcome.columns)
            raise FlowError(
                f"columns {names} of {len(outcome.ids)} rows need {total} bytes in the store of worker {worker}, {free} of "
                f"{limit} are free; use fewer rows, or raise store_bytes"
            )

    def shown(self, worker: int, ticket: int, place: Place) -> None:
        """A store has weights that a hook shows."""
        self.put(worker, weights_column(place), [state_id(ticket)], [place])

    def made(self, worker: int, outcome: Outcome) -> None:
        """A function has made columns."""
        if self.ledger is not None:
            for column, places in outcome.columns.items():
                self.put(worker, column, outcome.ids, places)

    def free(self, worker: int, ids: Iterable[int]) -> None:
        """A store was told to drop rows."""
        if self.ledger is not None:
            self.ledger.free(worker, ids)

    def close(self) -> None:
        """All stores have ended."""
        if self.ledger is not None:
            self.ledger.clear()

    def lose(self, worker: int) -> None:
        """A store has ended."""
        if self.ledger is not None:
            self.ledger.lose(worker)
