"""The places of a column of rows, as arrays: what a message has, and what thousands of rows are read by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np

from ...errors import WireError
from ...records import from_plain, plain
from .places import (
    ALIGNMENT,
    SEAL_BYTES,
    Form,
    Place,
    SegmentAddress,
    form_bytes,
    form_of_wire,
    seal_offset,
)

__all__ = ["Places"]

_MOST_ROWS = 1 << 24

_Integers = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]


class Places(Sequence[Place]):
    """Places in one segment; a sequence of `Place`.

    Args:
        worker: Number of the worker that holds the values.
        segment: Address of that worker's segment.
        offsets: Offsets of the first bytes, int64 [rows], multiples of 64.
        n_bytes: Bytes of each value, int64 [rows].
        serials: Serial numbers behind the values, uint64 [rows].
        forms: Different kinds and parts of values.
        form_of: Number of the form of each value, int64 [rows].
    """

    def __init__(
        self,
        worker: int,
        segment: SegmentAddress,
        offsets: _Integers,
        n_bytes: _Integers,
        serials: _Words,
        forms: Sequence[Form],
        form_of: _Integers,
    ) -> None:
        self.worker = worker
        self.segment = segment
        self.offsets = offsets
        self.n_bytes = n_bytes
        self.serials = serials
        self.forms = tuple(forms)
        self.form_of = form_of

    @classmethod
    def of(cls, places: Sequence[Place]) -> Places:
        """Return places of one worker and segment, at least one, as arrays."""
        numbers: dict[Form, int] = {}
        form_of = [numbers.setdefault((one.kind, one.parts), len(numbers)) for one in places]
        return cls(
            places[0].worker,
            places[0].segment,
            np.array([one.offset for one in places], np.int64),
            np.array([one.n_bytes for one in places], np.int64),
            np.array([one.serial for one in places], np.uint64),
            tuple(numbers),
            np.array(form_of, np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, at: int) -> Place: ...

    @overload
    def __getitem__(self, at: slice) -> Places: ...

    def __getitem__(self, at: int | slice) -> Place | Places:
        if isinstance(at, slice):
            return self.select(range(*at.indices(len(self))))
        kind, parts = self.forms[self.form_of[at]]
        return Place(
            self.worker,
            self.segment,
            int(self.offsets[at]),
            int(self.n_bytes[at]),
            int(self.serials[at]),
            kind,
            parts,
        )

    def select(self, rows: Iterable[int]) -> Places:
        """Return the places of some rows, by their numbers here."""
        which = np.fromiter(rows, np.int64)
        used, form_of = np.unique(self.form_of[which], return_inverse=True)
        return Places(
            self.worker,
            self.segment,
            self.offsets[which],
            self.n_bytes[which],
            self.serials[which],
            [self.forms[one] for one in used],
            form_of,
        )

    def moved(self, worker: int, segment: SegmentAddress, offsets: _Integers, serials: _Words) -> Places:
        """Return the places of the same values elsewhere."""
        return Places(worker, segment, offsets, self.n_bytes, serials, self.forms, self.form_of)

    @property
    def seals(self) -> _Integers:
        """Where the serial numbers are, in words of 8 bytes, int64 [rows]."""
        found: _Integers = seal_offset(self.offsets, self.n_bytes) >> 3
        return found

    def as_wire(self) -> list[Any]:
        """Return them as plain types: 28 bytes for each row, and the different forms."""
        return [
            self.worker,
            plain(self.segment),
            self.offsets.astype("<i8").tobytes(),
            self.n_bytes.astype("<i8").tobytes(),
            self.serials.astype("<u8").tobytes(),
            [[kind, [[dtype, list(shape)] for dtype, shape in parts]] for kind, parts in self.forms],
            self.form_of.astype("<i4").tobytes(),
        ]

    @classmethod
    def from_wire(cls, wire: object) -> Places:
        """Return the places of what `as_wire` made; each is checked as by `Place.from_wire`.

        Raises:
            WireError: a field is missing or impossible.
        """
        if not isinstance(wire, (list, tuple)) or len(wire) != 7:
            raise WireError(f"places are {repr(wire)[:60]}; need a list of 7")
        worker, segment, offsets, n_bytes, serials, forms, form_of = wire
        if type(worker) is not int or not 0 <= worker < 1 << 31:
            raise WireError(f"places: worker is {repr(worker)[:60]}; need an integer from 0 to 2^31 - 1")
        address = from_plain(SegmentAddress, segment)
        if type(form_of) is not bytes or len(form_of) % 4 or len(form_of) > 4 * _MOST_ROWS:
            raise WireError("places: forms of rows are no bytes of at most 2^24 rows")
        n = len(form_of) // 4
        for name, column in (("offsets", offsets), ("n_bytes", n_bytes), ("serials", serials)):
            if type(column) is not bytes or len(column) != 8 * n:
                raise WireError(f"places: {name} are {repr(column)[:60]}; need {8 * n} bytes")
        if not isinstance(forms, (list, tuple)) or len(forms) > n:
            raise WireError(f"places: forms are {repr(forms)[:60]}; need at most {n}")
        checked = [form_of_wire(one) for one in forms]
        starts, lengths = np.frombuffer(offsets, "<i8"), np.frombuffer(n_bytes, "<i8")
        numbers = np.frombuffer(form_of, "<i4").astype(np.int64)
        if n and not 0 <= numbers.min() <= numbers.max() < len(checked):
            raise WireError(f"places: forms of rows are {numbers.min()} to {numbers.max()} of {len(checked)}")
        most = address.n_bytes
        is_inside = (starts >= 0) & (starts % ALIGNMENT == 0) & (starts < most) & (lengths >= 0)
        is_inside &= (lengths < most) & (seal_offset(starts, lengths) + SEAL_BYTES <= most)
        # -1: values of the form differ.
        needed = np.array([-1 if size is None else size for size in map(form_bytes, checked)], object)
        is_of_form = np.array([], bool)
        if n:
            if any(size > most for size in needed):
                raise WireError(f"places: a form has more bytes than a segment of {most}")
            of_form = needed.astype(np.int64)[numbers]
            is_of_form = (of_form < 0) | (of_form == lengths)
        wrong = np.flatnonzero(~(is_inside & is_of_form))
        if len(wrong):
            at = int(wrong[0])
            raise WireError(
                f"places: row {at} has {lengths[at]} bytes at {starts[at]} in a segment of {most} bytes, as "
                f"{repr(checked[numbers[at]])[:60]}"
            )
        return cls(worker, address, starts, lengths, np.frombuffer(serials, "<u8"), checked, numbers)
