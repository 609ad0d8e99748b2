"""Which bytes of a segment are in use: extents by first fit, and by best fit where that leaves none. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

__all__ = ["Space"]

_Integers = np.ndarray[Any, np.dtype[np.int64]]


class Space:
    """The free extents of a range of bytes.

    Args:
        n_bytes: Bytes of the range.

    Source: first fit and best fit, Knuth, The Art of Computer Programming 1, section 2.5.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._free = [(0, n_bytes)] if n_bytes else []

    @property
    def n_free(self) -> int:
        """How many bytes are free."""
        return sum(length for _, length in self._free)

    @property
    def largest(self) -> int:
        """The length of the largest free extent."""
        return max((length for _, length in self._free), default=0)

    def take(self, sizes: Sequence[int]) -> list[int] | None:
        """Return where extents of these sizes are, now in use; None, and nothing changed, if they do not fit.

        They lie one behind the other if there is room for all of them in one extent.

        Args:
            sizes: Sizes of the extents in bytes, each at least 1.
        """
        total = sum(sizes)
        if not total:
            return []
        for i, (start, length) in enumerate(self._free):
            if length >= total:
                self._free[i : i + 1] = [(start + total, length - total)] if length > total else []
                return list(accumulate(sizes[:-1], initial=start))
        return self._scattered(sizes)

    def give(self, offsets: _Integers, sizes: _Integers) -> None:
        """Free extents that were taken.

        Args:
            offsets: int64 [n], where they are.
            sizes: int64 [n], in bytes.
        """
        order = np.argsort(offsets)
        starts, ends = offsets[order], (offsets + sizes)[order]
        # Neighbours are one extent already.
        is_first = np.concatenate(([True], starts[1:] != ends[:-1])) if len(order) else np.zeros(0, bool)
        firsts = np.flatnonzero(is_first)
        lasts = np.concatenate((firsts[1:], [len(order)])) - 1 if len(firsts) else firsts
        given = zip(starts[firsts].tolist(), (ends[lasts] - starts[firsts]).tolist(), strict=True)
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self._free, *given]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._free = merged

    def _scattered(self, sizes: Sequence[int]) -> list[int] | None:
        by_length = sorted((length, start) for start, length in self._free)
        offsets = [0] * len(sizes)
        for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            found = bisect_left(by_length, (sizes[i], 0))
            if found == len(by_length):
                return None
            length, start = by_length.pop(found)
            offsets[i] = start
            if length > sizes[i]:
                insort(by_length, (length - sizes[i], start + sizes[i]))
        self._free = sorted((start, length) for length, start in by_length)
        return offsets
