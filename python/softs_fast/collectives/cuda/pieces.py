"""Parts of tensors as one row of elements, although they are not adjacent in memory. Pure: no I/O, no clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from softs_fast.collectives.tensors import name_of

if TYPE_CHECKING:
    import torch

# Alignment of slices of the inputs: no two ranks read parts of one line, and every slice begins at a whole word.
_LINE_BYTES = 128

#: A row of `_kernels.cuda_pack`: address, items, dtype there; offset in bytes, dtype there.
PackRow = tuple[int, int, str, int, str]


class Pieces:
    """Elements in several places, addressed as one row.

    Args:
        pieces: Address and number of elements of each piece.
        dtype: Dtype of all elements, by name.
        item_bytes: Bytes of an element.
    """

    def __init__(self, pieces: Sequence[tuple[int, int]], dtype: str, item_bytes: int) -> None:
        self._addresses = [address for address, count in pieces if count]
        self._ends = list(accumulate(count for _, count in pieces if count))
        self.dtype = dtype
        self.item_bytes = item_bytes

    @property
    def count(self) -> int:
        """Number of elements."""
        return self._ends[-1] if self._ends else 0

    def part(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield address, number, and index after `begin` of the elements from `begin` to `end`."""
        at = begin
        index = bisect_right(self._ends, begin)
        while at < end:
            first = self._ends[index - 1] if index else 0
            count = min(end, self._ends[index]) - at
            yield self._addresses[index] + (at - first) * self.item_bytes, count, at - begin
            at += count
            index += 1

    def together(self, begin: int, end: int) -> int | None:
        """Return the address of elements `begin` to `end` if they are contiguous."""
        address, count, _ = next(self.part(begin, end))
        return address if count == end - begin else None

    def gather_rows(self, begin: int, end: int, dtype: str, item_bytes: int) -> list[PackRow]:
        """Return rows that pack elements `begin` to `end` into one row of another dtype."""
        return [
            (address, count, self.dtype, at * item_bytes, dtype)
            for address, count, at in self.part(begin, end)
        ]

    def scatter_rows(self, sources: Sequence[tuple[int, int, int]]) -> tuple[list[PackRow], int, int]:
        """Return rows that copy to these elements from contiguous sources.

        Args:
            sources: Address of each source, and the range of its elements, from and to.

        Returns:
            The rows, with offsets from the lowest address that is written to; that address; bytes from there to the
            end.
        """
        targets = [
            (source + at * self.item_bytes, count, address)
            for source, begin, end in sources
            for address, count, at in self.part(begin, end)
        ]
        if not targets:
            return [], 0, 0
        lowest = min(address for _, _, address in targets)
        beyond = max(address + count * self.item_bytes for _, count, address in targets)
        rows = [(source, count, self.dtype, to - lowest, self.dtype) for source, count, to in targets]
        return rows, lowest, beyond - lowest


def slice_bounds(count: int, item_bytes: int, size: int) -> list[int]:
    """Return the beginning of each rank's slice of `count` elements, and the end of the last one."""
    step = _LINE_BYTES // item_bytes
    steps = -(-count // step)
    return [min(count, steps * rank // size * step) for rank in range(size + 1)]


def pieces_of(tensors: Sequence[torch.Tensor]) -> Pieces:
    """Return the elements of tensors of one dtype, one tensor after the other."""
    first = tensors[0]
    places = [(tensor.data_ptr(), tensor.numel()) for tensor in tensors]
    return Pieces(places, name_of(first.dtype), first.element_size())
