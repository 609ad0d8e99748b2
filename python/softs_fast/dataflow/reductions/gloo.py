"""Ranks in processes of their own, over a process group of gloo: the traffic of a ring, and sums in the order of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import FlowError
from .sums import sum_in_order

__all__ = ["GlooRanks"]

_DIGEST_BYTES = 16
#: So many flags travel with the digest; further ones in a message of their own.
_FIRST_FLAGS = 8 * 48


class GlooRanks:
    """The ranks along one dimension of a mesh.

    gloo sums in an order that depends on the number of ranks and of elements. So slices are exchanged, each rank sums
    one, in the order of the ranks, and the sums are gathered.

    Args:
        group: process group of torch.distributed, of these ranks alone.
        order: for each rank of the mesh its rank in the group.

    Source: reduce-scatter and all-gather of Thakur, Rabenseifner, Gropp, IJHPCA 2005, section 4, by one exchange each.
    """

    def __init__(self, group: Any, order: Sequence[int]) -> None:
        self.size = len(order)
        self._group = group
        self._order = tuple(order)

    def check(self, what: str, flags: Sequence[bool] = ()) -> list[bool]:
        """Check that all ranks are about to do the same; see `RankGroup`.

        Raises:
            FlowError: another rank does something else.
            RuntimeError: another rank has ended.
        """
        digest = hashlib.blake2b(what.encode(), digest_size=_DIGEST_BYTES).digest()
        first = _packed(flags[:_FIRST_FLAGS], _FIRST_FLAGS)
        said = self._gathered(torch.cat([torch.tensor(list(digest), dtype=torch.uint8), first]))
        heads = said[:, :_DIGEST_BYTES]
        if not (heads == heads[0]).all():
            others = [rank for rank, at in enumerate(self._order) if bytes(heads[at].tolist()) != digest]
            raise FlowError(
                f"this rank is in {what[:200]}, and ranks {others} are in something else; each rank has to make the "
                "same calls of its mesh, with the same shapes"
            )
        found = said[:, _DIGEST_BYTES:]
        if len(flags) > _FIRST_FLAGS:
            rest = flags[_FIRST_FLAGS:]
            found = torch.cat([found, self._gathered(_packed(rest, len(rest)))], dim=1)
        bits = (found[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        return [bool(one) for one in bits.flatten(1).any(dim=0)[: len(flags)].tolist()]

    def sum(self, parts: Sequence[Tensor], divisor: int) -> list[Tensor]:
        """Return the sums over all ranks in their order, divided by a number; see `RankGroup`.

        Raises:
            RuntimeError: another rank has ended.
        """
        import torch.distributed as dist

        def exchange(part: Tensor) -> tuple[Tensor, Any]:
            received = torch.empty_like(part)
            # As bytes: gloo does not carry all dtypes.
            work: Any = dist.all_to_all_single(
                _bytes(received), _bytes(part), group=self._group, async_op=True
            )
            return received, work

        gathering: list[Any] = []
        sums: list[Tensor] = []
        following = exchange(parts[0]) if parts else None
        for number, part in enumerate(parts):
            assert following is not None
            received, work = following
            work.wait()
            if number + 1 < len(parts):
                following = exchange(parts[number + 1])
            slices = received.view(self.size, -1)
            own = sum_in_order([slices[at] for at in self._order], divisor)
            # The bytes of `part` have been sent.
            gathering.append(
                dist.all_gather_into_tensor(_bytes(part), _bytes(own), group=self._group, async_op=True)
            )
            sums.append(part)
        for work in gathering:
            work.wait()
        return sums

    def from_first(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors of rank 0; see `RankGroup`.

        Raises:
            RuntimeError: another rank has ended.
        """
        import torch.distributed as dist

        source = dist.get_global_rank(self._group, self._order[0])
        for part in parts:
            dist.broadcast(_bytes(part), src=source, group=self._group)
        return list(parts)

    def _gathered(self, own: Tensor) -> Tensor:
        import torch.distributed as dist

        found = torch.empty(self.size * len(own), dtype=own.dtype)
        dist.all_gather_into_tensor(found, own, group=self._group)
        return found.view(self.size, -1)


def _bytes(flat: Tensor) -> Tensor:
    return flat.view(torch.uint8)


def _packed(flags: Sequence[bool], n: int) -> Tensor:
    bits = torch.zeros(-(-n // 8) * 8, dtype=torch.uint8)
    bits[: len(flags)] = torch.tensor(flags, dtype=torch.uint8)
    return (bits.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(dim=1, dtype=torch.uint8)
