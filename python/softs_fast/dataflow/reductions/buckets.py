"""Tensors as a few flat ones, so that few messages carry them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["BUCKET_BYTES", "Buckets"]

#: A bucket that has so many bytes gets no further tensor. Sums of one are made while the next one travels.
BUCKET_BYTES = 4 << 20


class Buckets:
    """Which tensors are in which bucket: neighbours of one dtype.

    Args:
        tensors: of which shapes and dtypes count.
        multiple: the number of elements of a bucket is a multiple of it, and at least that.
        most_bytes: see `BUCKET_BYTES`.
    """

    def __init__(self, tensors: Sequence[Tensor], multiple: int, most_bytes: int = BUCKET_BYTES) -> None:
        self._multiple = multiple
        #: Of each bucket the numbers of its tensors.
        self.numbers: list[list[int]] = []
        open_buckets: dict[torch.dtype, int] = {}
        n_bytes: list[int] = []
        for number, one in enumerate(tensors):
            at = open_buckets.get(one.dtype)
            if at is None or n_bytes[at] + one.nbytes > most_bytes:
                at = open_buckets[one.dtype] = len(self.numbers)
                self.numbers.append([])
                n_bytes.append(0)
            self.numbers[at].append(number)
            n_bytes[at] += one.nbytes

    def join(self, tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
        """Return the buckets, new tensors of one dimension.

        Args:
            tensors: None is as many zeros.
            like: of the shapes and dtypes that this was made of.
        """
        joined = []
        for numbers in self.numbers:
            n = sum(like[number].numel() for number in numbers)
            flat = torch.empty(max(-(-n // self._multiple), 1) * self._multiple, dtype=like[numbers[0]].dtype)
            flat[n:] = 0
            for number, piece in self._pieces(flat, numbers, like):
                one = tensors[number]
                if one is None:
                    piece.zero_()
                else:
                    piece.copy_(one)
            joined.append(flat)
        return joined

    def part(self, joined: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of buckets, as views of them."""
        found: dict[int, Tensor] = {}
        for flat, numbers in zip(joined, self.numbers, strict=True):
            found |= dict(self._pieces(flat, numbers, like))
        return [found[number] for number in range(len(like))]

    @staticmethod
    def _pieces(flat: Tensor, numbers: Sequence[int], like: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        begin = 0
        for number in numbers:
            end = begin + like[number].numel()
            yield number, flat[begin:end].view(like[number].shape)
            begin = end
