"""Boxes of tensors: which part of a tensor each worker of a mesh has. Pure: no torch, no process group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

__all__ = ["Box", "box_of", "chunk", "whole"]


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor.

    Attributes:
        start: its first index along each dimension.
        size: along each dimension; both are empty for a scalar, which has one item.
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


def box_of(shape: Sequence[int], cuts: Iterable[tuple[int, int, int]]) -> Box:
    """Return the part of a tensor that a worker has.

    Args:
        shape: of the tensor.
        cuts: dimension of the tensor, number of chunks, and which of them; each is applied to what the one before left.
            A mesh dimension with the placement `Shard` is one cut, the outermost first; one with `Replicate` is none.
    """
    start, size = [0] * len(shape), list(shape)
    for dim, n_chunks, index in cuts:
        first, size[dim] = chunk(size[dim], n_chunks, index)
        start[dim] += first
    return Box(tuple(start), tuple(size))
