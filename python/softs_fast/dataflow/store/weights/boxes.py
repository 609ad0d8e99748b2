"""Boxes of tensors: which part of a tensor each worker of a mesh has. Pure: no torch, no process group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

__all__ = ["Box", "Cut", "Piece", "chunk", "pieces_of", "whole"]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor.

    Attributes:
        start: First index along each dimension.
        size: Number of indices along each dimension; both are empty for a scalar, which has one item.
    """

    start: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def n_items(self) -> int:
        """How many items it has."""
        return prod(self.size)

    def overlap(self, other: Box) -> Box:
        """Return the part that is in both; it has no items if there is none."""
        if self == other:
            return self
        starts = tuple(map(max, self.start, other.start))
        sizes = tuple(
            max(min(a + n, b + m) - start, 0)
            for a, n, b, m, start in zip(self.start, self.size, other.start, other.size, starts, strict=True)
        )
        return Box(starts, sizes)

    def minus(self, other: Box) -> list[Box]:
        """Return what is not in another box, as boxes that do not overlap."""
        if self == other:
            return []
        inner = self.overlap(other)
        if not inner.n_items:
            return [self] if self.n_items else []
        found = []
        start, size = list(self.start), list(self.size)
        for dim, (low, n) in enumerate(zip(inner.start, inner.size, strict=True)):
            before, behind = low - start[dim], start[dim] + size[dim] - low - n
            for first, count in ((start[dim], before), (low + n, behind)):
                if count:
                    found.append(
                        Box((*start[:dim], first, *start[dim + 1 :]), (*size[:dim], count, *size[dim + 1 :]))
                    )
            start[dim], size[dim] = low, n
        return found

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the indices of this box in a tensor that has the items of an outer one."""
        return tuple(
            slice(a - b, a - b + n) for a, b, n in zip(self.start, outer.start, self.size, strict=True)
        )

    def offset_in(self, outer: Box) -> tuple[int, ...]:
        """Return its first index in a tensor that has the items of an outer box."""
        return tuple(a - b for a, b in zip(self.start, outer.start, strict=True))

    def span_in(self, size: Sequence[int], start: Sequence[int]) -> tuple[int, int] | None:
        """Return where its items are in a contiguous tensor, first item and number; None if they do not follow each other.

        Args:
            size: Size of the tensor.
            start: First index of the box in the tensor.
        """
        first = n = 1
        at, is_cut = 0, False
        for mine, all_of_it, begin in zip(reversed(self.size), reversed(size), reversed(start), strict=True):
            if is_cut and mine != 1:
                return None
            is_cut = is_cut or mine != all_of_it
            at += begin * first
            first, n = first * all_of_it, n * mine
        return at, n

    def part(self, n_parts: int, index: int) -> Box | None:
        """Return one of some parts, cut as by `chunk` along the first dimension that is longer than 1; None if it is empty."""
        dim = next((i for i, size in enumerate(self.size) if size > 1), None)
        if dim is None:
            return self if self.n_items and not index else None
        first, n = chunk(self.size[dim], n_parts, index)
        found = Box(
            (*self.start[:dim], self.start[dim] + first, *self.start[dim + 1 :]),
            (*self.size[:dim], n, *self.size[dim + 1 :]),
        )
        return found if found.n_items else None

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{a + n}' for a, n in zip(self.start, self.size, strict=True))}]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor that a worker has.

    Attributes:
        box: Box in the whole tensor.
        at: First index of the box in what the worker has, along each dimension.
    """

    box: Box
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts a tensor along a dimension into chunks, of which a worker has one.

    Attributes:
        dim: Dimension of the tensor.
        n_chunks: Number of chunks.
        index: Index of the worker's chunk.
        n_groups: Number of parts into which the tensor is cut first; the worker has this chunk of each, one behind
            the other.
    """

    dim: int
    n_chunks: int
    index: int
    n_groups: int = 1


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


def chunk(size: int, n_chunks: int, index: int) -> tuple[int, int]:
    """Return start and size of a chunk, as `torch.chunk` and the placement `Shard` cut.

    All have ceil(size / n_chunks) items, but the last that has any, which may have fewer, and those behind it, which
    have none.
    """
    full = -(-size // n_chunks)
    start = min(full * index, size)
    return start, min(full, size - start)


def pieces_of(shape: Sequence[int], cuts: Iterable[Cut]) -> tuple[tuple[int, ...], tuple[Piece, ...]]:
    """Return the size of what a worker has of a tensor, and the boxes of the tensor that it consists of.

    Args:
        shape: Shape of the tensor.
        cuts: Cuts, each of which is applied to what the one before left.
    """
    runs: list[_Runs] = [((0, size),) for size in shape]
    for one in cuts:
        runs[one.dim] = _cut(runs[one.dim], one)
    pieces = []
    for some in product(*map(_placed, runs)):
        box = Box(tuple(start for start, _, _ in some), tuple(n for _, n, _ in some))
        pieces.append(Piece(box, tuple(at for _, _, at in some)))
    return tuple(sum(n for _, n in one) for one in runs), tuple(pieces)


#: Along one dimension: first indices in the tensor, and how many items follow.
_Runs = tuple[tuple[int, int], ...]


def _cut(runs: _Runs, cut: Cut) -> _Runs:
    found: list[tuple[int, int]] = []
    size = sum(n for _, n in runs)
    for group in range(cut.n_groups):
        first, n = chunk(size, cut.n_groups, group)
        start, n = chunk(n, cut.n_chunks, cut.index)
        for begin, count in _slice(runs, first + start, n):
            if found and sum(found[-1]) == begin:
                begin, count = found[-1][0], found.pop()[1] + count
            found.append((begin, count))
    return tuple(found)


def _slice(runs: _Runs, start: int, n: int) -> Iterator[tuple[int, int]]:
    """Yield some items of runs that follow each other."""
    for first, count in runs:
        low, high = max(start, 0), min(start + n, count)
        if low < high:
            yield first + low, high - low
        start -= count


def _placed(runs: _Runs) -> Iterator[tuple[int, int, int]]:
    """Yield runs with the number of items before each."""
    at = 0
    for start, n in runs:
        if n:
            yield start, n, at
        at += n
