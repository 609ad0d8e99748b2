"""Places of values in messages: each segment is named once, however many rows are in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any

from ...errors import WireError
from ...records import Message, Tag64, most, span
from ..master.rows.records import Name
from ..store.places import Kind, Parts, Place, Rank, SegmentAddress, Size

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "Columns"]

MOST_COLUMNS = 1 << 12
MOST_ROWS = 1 << 20
_MOST_SEGMENTS = 1 << 12


class _Row(Message):
    """A place, of which the segment is a number."""

    worker: Rank
    segment: Annotated[int, span(0, _MOST_SEGMENTS - 1)]
    offset: Size
    n_bytes: Size
    serial: Tag64
    kind: Kind
    parts: Parts


class Columns(Message, dict=True, eq=False):
    """Columns of rows by name: the place of each value, or the values where all workers are in one process.

    Attributes:
        names: Names of the columns.
        segments: Segments of the places, each one once; nothing is here before `packed`.
        rows: Places of each column.
    """

    names: Annotated[tuple[Name, ...], most(MOST_COLUMNS)]
    segments: Annotated[tuple[SegmentAddress, ...], most(_MOST_SEGMENTS)]
    rows: Annotated[tuple[Annotated[tuple[_Row, ...], most(MOST_ROWS)], ...], most(MOST_COLUMNS)]

    @classmethod
    def of(cls, places: Mapping[str, Sequence[Any]]) -> Columns:
        """Return columns of places, or of values, which stay in this process until they are packed."""
        made = cls(tuple(places), (), ())
        made.__dict__["places"] = dict(places)
        return made

    def packed(self) -> Columns:
        """Return the columns as messages have them; the places are `Place`s."""
        if self.rows or not self.names:
            return self
        numbers: dict[SegmentAddress, int] = {}
        rows = tuple(
            tuple(
                _Row(
                    *(one.worker, numbers.setdefault(one.segment, len(numbers)), one.offset, one.n_bytes),
                    *(one.serial, one.kind, one.parts),
                )
                for one in column
            )
            for column in self.places.values()
        )
        return Columns(self.names, tuple(numbers), rows)

    @cached_property
    def places(self) -> dict[str, Sequence[Any]]:
        """The places, or values, by name.

        Raises:
            WireError: a place has a number of no segment, or is not what its segment and its form allow, or names and
                columns are not as many.
        """
        if len(self.names) != len(self.rows) or len(set(self.names)) != len(self.names):
            raise WireError(f"{len(self.rows)} columns have the names {', '.join(self.names)[:200]}")
        return {name: tuple(map(self._place, row)) for name, row in zip(self.names, self.rows, strict=True)}

    def one(self) -> Place:
        """Return the only place.

        Raises:
            WireError: there are others, or none.
        """
        if self.lengths() != [1]:
            raise WireError(f"places of {self.lengths()[:8]} values; need one")
        place: Place = self.places[self.names[0]][0]
        return place

    def lengths(self) -> list[int]:
        """Return how many values each column has."""
        columns = self.__dict__.get("places")
        return [len(one) for one in (self.rows if columns is None else columns.values())]

    def __eq__(self, other: object) -> bool:
        """Whether names and places are the same, packed or not."""
        if not isinstance(other, Columns):
            return NotImplemented
        mine, theirs = self.places, other.places
        return list(mine) == list(theirs) and all(
            list(one) == list(theirs[name]) for name, one in mine.items()
        )

    def __len__(self) -> int:
        return len(self.names)

    def _place(self, row: _Row) -> Place:
        if row.segment >= len(self.segments):
            raise WireError(f"a place is in segment {row.segment} of {len(self.segments)}")
        segment = self.segments[row.segment]
        place = Place(row.worker, segment, row.offset, row.n_bytes, row.serial, row.kind, row.parts)
        place.check()
        return place
