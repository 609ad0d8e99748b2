"""Places of values in messages: each segment is named once, however many rows are in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated

from ...errors import WireError
from ...records import Message, Tag64, most, span
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


class Columns(Message, dict=True):
    """Places of columns: a sequence with the places of each."""

    segments: Annotated[tuple[SegmentAddress, ...], most(_MOST_SEGMENTS)]
    rows: Annotated[tuple[Annotated[tuple[_Row, ...], most(MOST_ROWS)], ...], most(MOST_COLUMNS)]

    @classmethod
    def of(cls, columns: Iterable[Sequence[Place]]) -> Columns:
        """Return places for a message."""
        numbers: dict[SegmentAddress, int] = {}
        rows = tuple(
            tuple(
                _Row(
                    *(one.worker, numbers.setdefault(one.segment, len(numbers)), one.offset, one.n_bytes),
                    *(one.serial, one.kind, one.parts),
                )
                for one in column
            )
            for column in columns
        )
        return cls(tuple(numbers), rows)

    @cached_property
    def places(self) -> tuple[tuple[Place, ...], ...]:
        """The places.

        Raises:
            WireError: one has a number of no segment, or is not what its segment and its form allow.
        """
        return tuple(tuple(map(self._place, column)) for column in self.rows)

    def one(self) -> Place:
        """Return the only place.

        Raises:
            WireError: there are others, or none.
        """
        if [len(column) for column in self.rows] != [1]:
            raise WireError(f"places of {[len(column) for column in self.rows][:8]} values; need one")
        return self.places[0][0]

    def _place(self, row: _Row) -> Place:
        if row.segment >= len(self.segments):
            raise WireError(f"a place is in segment {row.segment} of {len(self.segments)}")
        segment = self.segments[row.segment]
        place = Place(row.worker, segment, row.offset, row.n_bytes, row.serial, row.kind, row.parts)
        place.check()
        return place

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Place, ...]]:
        return iter(self.places)
