"""Ranks in processes of their own, over a process group of gloo: the traffic of a ring, and sums in the order of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....errors import FlowError
from .sums import sum_in_order

__all__ = ["GlooRanks"]

_DIGEST_BYTES = 16
#: What is no larger goes to all ranks as it is, with the digest: one message is quicker than three.
_SMALL_BYTES = 8192


class GlooRanks:
    """The ranks of a role along one dimension of its mesh; each calls the same methods in the same order.

    What a call is about, in words, has to be the same on all ranks, and is checked before anything else is sent.
    gloo sums in an order that depends on the number of ranks and of elements. So slices are exchanged, each rank sums
    one, in the order of the ranks, and the sums are gathered.

    The first message of each call has the same size, whatever the call is: ranks in different calls get to know that,
    where messages of different sizes would end the process.

    Args:
        group: Process group of torch.distributed, of these ranks alone.
        order: Rank in the group of each rank of the mesh.

    Source: reduce-scatter and all-gather of Thakur, Rabenseifner, Gropp, IJHPCA 2005, section 4, by one exchange each.
    """

    def __init__(self, group: Any, order: Sequence[int]) -> None:
        self.size = len(order)
        self._group = group
        self._order = tuple(order)

    def any(self, what: str, flags: Sequence[bool] = ()) -> list[bool]:
        """Return for each flag whether it is set on any rank.

        Args:
            what: Text on what the call is about.
            flags: Flags of this rank; as many on each rank, if `what` is the same.

        Raises:
            FlowError: another rank does something else.
            RuntimeError: another rank has ended.
        """
        packed = _packed(flags)
        found = self._compared(what, packed[:_SMALL_BYTES])
        if len(packed) > _SMALL_BYTES:
            found = torch.cat([found, self._gathered(packed[_SMALL_BYTES:])], dim=1)
        bits = (found[:, : len(packed), None] >> torch.arange(8, dtype=torch.uint8, device="cpu")) & 1
        is_set: list[bool] = bits.flatten(1).any(dim=0)[: len(flags)].tolist()
        return is_set

    def sum(self, parts: Sequence[Tensor], divisor: int, what: str | None = None) -> list[Tensor]:
        """Return the sums over all ranks in their order, divided by a number.

        Args:
            parts: Tensors of one dimension each, of a number of elements that the number of ranks divides,
                contiguous; they may be overwritten. Shapes and dtypes are the same on all ranks.
            divisor: Divisor of the sums, see `sum_in_order`.
            what: Text on what the call is about; None: a call just before was about the same.

        Raises:
            FlowError: another rank does something else.
            RuntimeError: another rank has ended.
        """
        if sum(part.nbytes for part in parts) <= _SMALL_BYTES:
            return self._sum_small(parts, divisor, what)
        if what is not None:
            self.any(what)
        return self._sum_pairs(parts, divisor) if self._are_pairs(parts) else self._sum_large(parts, divisor)

    def from_first(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of rank 0; `parts` as in `sum`, and a call just before was about the same.

        Raises:
            RuntimeError: another rank has ended.
        """
        import torch.distributed as dist

        source = dist.get_global_rank(self._group, self._order[0])
        for part in parts:
            dist.broadcast(_bytes(part), src=source, group=self._group)
        return list(parts)

    def _sum_small(self, parts: Sequence[Tensor], divisor: int, what: str | None) -> list[Tensor]:
        own = (
            torch.cat([_bytes(part) for part in parts])
            if parts
            else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
        found = self._gathered(own) if what is None else self._compared(what, own)[:, : len(own)]
        sums, begin = [], 0
        for part in parts:
            # A copy, so that it is aligned.
            each = [found[at, begin : begin + part.nbytes].clone().view(part.dtype) for at in self._order]
            sums.append(sum_in_order(each, divisor, overwrite=True))
            begin += part.nbytes
        return sums

    def _are_pairs(self, parts: Sequence[Tensor]) -> bool:
        """Return whether there is one sum of two numbers for each element, which gloo makes, too: a + b is b + a."""
        return self.size == 2 and all(part.dtype in (torch.float32, torch.float64) for part in parts)

    def _sum_pairs(self, parts: Sequence[Tensor], divisor: int) -> list[Tensor]:
        import torch.distributed as dist

        works: list[Any] = [dist.all_reduce(part, group=self._group, async_op=True) for part in parts]
        for part, work in zip(parts, works, strict=True):
            work.wait()
            if divisor != 1:
                part /= divisor
        return list(parts)

    def _sum_large(self, parts: Sequence[Tensor], divisor: int) -> list[Tensor]:
        import torch.distributed as dist

        def exchange(part: Tensor) -> tuple[Tensor, Any]:
            received = torch.empty_like(part)
            # As bytes: gloo does not carry all dtypes.
            work: Any = dist.all_to_all_single(
                _bytes(received), _bytes(part), group=self._group, async_op=True
            )
            return received, work

        gathering: list[Any] = []
        following = exchange(parts[0])
        for number, part in enumerate(parts):
            received, work = following
            work.wait()
            if number + 1 < len(parts):
                following = exchange(parts[number + 1])
            slices = received.view(self.size, -1)
            own = sum_in_order([slices[at] for at in self._order], divisor, overwrite=True)
            # What was in `part` has been sent.
            work = dist.all_gather_into_tensor(_bytes(part), _bytes(own), group=self._group, async_op=True)
            gathering.append(work)
        for work in gathering:
            work.wait()
        return list(parts)

    def _compared(self, what: str, own: Tensor) -> Tensor:
        """Return what each rank sends, at most `_SMALL_BYTES`, if all are in the same call."""
        digest = hashlib.blake2b(what.encode(), digest_size=_DIGEST_BYTES).digest()
        block = torch.zeros(_DIGEST_BYTES + _SMALL_BYTES, dtype=torch.uint8, device="cpu")
        block[:_DIGEST_BYTES] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        block[_DIGEST_BYTES : _DIGEST_BYTES + len(own)] = own
        found = self._gathered(block)
        others = [rank for rank, at in enumerate(self._order) if bytes(found[at, :_DIGEST_BYTES]) != digest]
        if others:
            raise FlowError(
                f"this rank is in {what[:200]}, and ranks {others} are in something else; all ranks have to make the same "
                "calls of their mesh, with the same shapes"
            )
        return found[:, _DIGEST_BYTES:]

    def _gathered(self, own: Tensor) -> Tensor:
        import torch.distributed as dist

        found = torch.empty(self.size * len(own), dtype=torch.uint8, device="cpu")
        dist.all_gather_into_tensor(found, own, group=self._group)
        return found.view(self.size, -1)


def _bytes(flat: Tensor) -> Tensor:
    return flat.view(torch.uint8)


def _packed(flags: Sequence[bool]) -> Tensor:
    bits = torch.zeros(-(-len(flags) // 8) * 8, dtype=torch.uint8, device="cpu")
    bits[: len(flags)] = torch.tensor(flags, dtype=torch.uint8, device="cpu")
    return (bits.view(-1, 8) << torch.arange(8, dtype=torch.uint8, device="cpu")).sum(
        dim=1, dtype=torch.uint8
    )
