"""How calls are cut into pieces, the same on all ranks; and tensors as the run of bytes that is cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Flat", "Piece", "Run", "all_gather", "all_reduce", "broadcast", "reduce_scatter"]

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Run:
    """Elements of one dtype, one after another.

    Attributes:
        dtype: its name, as "float32".
        n_items: how many.
        item_bytes: bytes of each.
    """

    dtype: str
    n_items: int
    item_bytes: int


@dataclass(frozen=True)
class Piece:
    """A part of a call that is sent at once.

    Attributes:
        dtype: Name of the dtype of its elements.
        n_items: Number of elements; 0 for a piece that only says that its rank has come.
        n_bytes: Number of bytes of the elements.
        source: Rank that has it; None: all have one, and they are reduced.
        owner: Rank that gets it; None: all do.
        read_at: Offset of the piece in the tensors of a rank that has it, bytes.
        write_at: Offset of the piece in the tensors of a rank that gets it, bytes.
    """

    dtype: str
    n_items: int
    n_bytes: int
    source: int | None = None
    owner: int | None = None
    read_at: int = 0
    write_at: int = 0

    def is_from(self, rank: int) -> bool:
        """Return whether a rank sends it."""
        return self.n_bytes > 0 and (self.source is None or self.source == rank)

    def is_for(self, rank: int) -> bool:
        """Return whether a rank gets it, and does not have it."""
        return self.n_bytes > 0 and self.source != rank and (self.owner is None or self.owner == rank)


#: A call without tensors is one of these: all ranks have come.
_EMPTY = Piece("uint8", 0, 0)


def all_reduce(runs: Sequence[Run], piece_bytes: int) -> list[Piece]:
    """Cut an all-reduce of tensors that lie one after another; a piece has one dtype."""
    pieces, at = [], 0
    for run in runs:
        for n_items in _cut(run.n_items, piece_bytes // run.item_bytes):
            n_bytes = n_items * run.item_bytes
            pieces.append(Piece(run.dtype, n_items, n_bytes, read_at=at, write_at=at))
            at += n_bytes
    return pieces or [_EMPTY]


def reduce_scatter(run: Run, size: int, piece_bytes: int) -> list[Piece]:
    """Cut a reduce-scatter of `size` parts of `run`."""
    pieces = []
    for owner in range(size):
        at = 0
        for n_items in _cut(run.n_items, piece_bytes // run.item_bytes):
            n_bytes = n_items * run.item_bytes
            read_at = owner * run.n_items * run.item_bytes + at
            pieces.append(Piece(run.dtype, n_items, n_bytes, None, owner, read_at, at))
            at += n_bytes
    return pieces or [_EMPTY]


def all_gather(n_bytes: int, size: int, piece_bytes: int) -> list[Piece]:
    """Cut an all-gather of `n_bytes` of each rank."""
    return [
        Piece("uint8", n, n, source, None, at, source * n_bytes + at)
        for source in range(size)
        for at, n in _at(n_bytes, piece_bytes)
    ] or [_EMPTY]


def broadcast(n_bytes: int, root: int, piece_bytes: int) -> list[Piece]:
    """Cut a broadcast of `n_bytes` of a rank."""
    return [Piece("uint8", n, n, root, None, at, at) for at, n in _at(n_bytes, piece_bytes)] or [_EMPTY]


def _cut(n_items: int, most: int) -> Iterator[int]:
    for begin in range(0, n_items, most):
        yield min(most, n_items - begin)


def _at(n_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, n_bytes, most):
        yield begin, min(most, n_bytes - begin)


class Flat:
    """The memory of several tensors as one run of bytes, in their order, read and written by position.

    Args:
        tensors: contiguous, in host memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._parts: list[_Bytes] = [
            tensor.detach().view(-1).view(torch.uint8).numpy() for tensor in tensors if tensor.numel()
        ]
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + part.size)

    def read(self, at: int, n_bytes: int) -> _Bytes:
        """Return bytes; a view, if they are of one tensor."""
        views = [part[begin:end] for part, begin, end in self._covered(at, n_bytes)]
        return views[0] if len(views) == 1 else np.concatenate(views)

    def write(self, at: int, data: bytes | bytearray) -> None:
        """Replace bytes."""
        new = np.frombuffer(data, np.uint8)
        done = 0
        for part, begin, end in self._covered(at, new.size):
            part[begin:end] = new[done : done + end - begin]
            done += end - begin

    def _covered(self, at: int, n_bytes: int) -> Iterator[tuple[_Bytes, int, int]]:
        """Yield the parts of a range, each with where it begins and ends in them."""
        until = at + n_bytes
        index = bisect_right(self._starts, at) - 1
        while at < until:
            start, stop = self._starts[index], min(until, self._starts[index + 1])
            yield self._parts[index], at - start, stop - start
            at, index = stop, index + 1
