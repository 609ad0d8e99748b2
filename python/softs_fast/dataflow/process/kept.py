"""Values that were brought to a worker for the main part of a call, until it takes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..store import Place
from ..store.ids import kept_id
from ..store.values import Value

__all__ = ["KeptInputs"]


class KeptInputs:
    """Values by call, column and row, with the places from which they were read."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[tuple[str, int], tuple[Place, Value]]] = {}

    def __len__(self) -> int:
        """Return for how many calls something is kept."""
        return len(self._calls)

    def put(
        self, call: int, ids: Sequence[int], columns: Mapping[str, Sequence[Place]], values: Sequence[Value]
    ) -> None:
        """Keep values for a call.

        Args:
            call: Number of the call.
            ids: Ids of the rows.
            columns: Places of the values by column, as many as ids.
            values: Values, one column behind the other.
        """
        keys = [
            (column, row_id, place)
            for column, places in columns.items()
            for row_id, place in zip(ids, places, strict=True)
        ]
        own = self._calls.setdefault(call, {})
        for (column, row_id, place), value in zip(keys, values, strict=True):
            own[column, row_id] = (place, value)

    def take(self, call: int, ids: Sequence[int], columns: Mapping[str, Sequence[Place]]) -> dict[int, Value]:
        """Return what is kept for a call, which is over with that; by its number in the order of `put`.

        A value that was made again since then has another place, and is not returned.

        Args:
            call: Number of the call.
            ids: Ids of the rows.
            columns: Places of the values by column, as many as ids.
        """
        own = self._calls.pop(call, None)
        if own is None:
            return {}
        found: dict[int, Value] = {}
        number = 0
        for column, places in columns.items():
            for row_id, place in zip(ids, places, strict=True):
                kept = own.get((column, row_id))
                if kept is not None and (kept[0].segment, kept[0].serial) == (place.segment, place.serial):
                    found[number] = kept[1]
                number += 1
        return found

    def free(self, ids: Iterable[int]) -> None:
        """Drop the values of rows, and what is kept for calls that are over (`kept_id`)."""
        if not self._calls:
            return
        gone = set(ids)
        for call, own in list(self._calls.items()):
            if kept_id(call) in gone:
                del self._calls[call]
                continue
            for key in [key for key in own if key[1] in gone]:
                del own[key]
            if not own:
                del self._calls[call]
