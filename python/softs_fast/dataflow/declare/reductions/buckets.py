"""Tensors as a few flat ones, so that few messages carry them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["BUCKET_BYTES", "Buckets"]

#: A bucket that has so many bytes gets no further tensor. Sums of one are made while the next one travels.
BUCKET_BYTES = 4 << 20


class Buckets:
    """Which tensors are in which bucket: neighbours of one dtype.

    Args:
        tensors: Tensors of which shapes and dtypes count.
        multiple: Divisor of the number of elements of a bucket, and the least number of them.
        most_bytes: Limit of the bytes of a bucket, see `BUCKET_BYTES`.
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
            tensors: Tensors to be joined; None is as many zeros.
            like: Tensors of the shapes and dtypes that this was made of.
        """
        joined = []
        for numbers in self.numbers:
            n = sum(like[number].numel() for number in numbers)
            flat = torch.empty(
                max(-(-n // self._multiple), 1) * self._multiple, dtype=like[numbers[0]].dtype, device="cpu"
            )
            flat[n:] = 0
            nothing = flat.new_zeros(1)
            pieces = [
                nothing.expand(like[number].numel()) if (one := tensors[number]) is None else one.reshape(-1)
                for number in numbers
            ]
            torch.cat(pieces, out=flat[:n])
            joined.append(flat)
        return joined

    def part(self, joined: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of buckets, as views of them."""
        found: list[Tensor] = list(like)
        for flat, numbers in zip(joined, self.numbers, strict=True):
            sizes = [like[number].numel() for number in numbers]
            pieces = torch.split(flat, [*sizes, len(flat) - sum(sizes)])
            for number, piece in zip(numbers, pieces[:-1], strict=True):
                found[number] = piece.view(like[number].shape)
        return found
