"""Sums, averages of gradients, and the tensors of rank 0, over the ranks of a role along one dimension of its mesh."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConfigError, FlowError

__all__ = ["OPS", "RankGroup", "weigh_gradients"]

OPS = ("sum", "mean")
#: Dtypes that are summed and divided in a wider one, and rounded once; gloo has no int16.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int16: torch.int32}
#: A bucket has no more bytes, unless it is one tensor.
_BUCKET_BYTES = 4 << 20
_SUMMABLE = (
    *_WIDE,
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
)


class RankGroup:
    """The ranks of a role along one dimension; each calls the same methods in the same order.

    Ranks first say which call they are in, in a message of one size: messages of different sizes would end the process.

    Args:
        group: Process group of torch.distributed with gloo, of these ranks alone.
        order: Rank in the group of each rank of the mesh.
    """

    def __init__(self, group: Any, order: Sequence[int]) -> None:
        self._group = group
        self._order = tuple(order)

    def all_reduce(self, tensors: Sequence[Tensor], op: str) -> list[Tensor]:
        """Return the sum or mean of each tensor over all ranks, see `Mesh.all_reduce`.

        Raises:
            ConfigError: a tensor cannot be summed.
            FlowError: another rank does something else.
            RuntimeError: another rank has ended.
        """
        is_mean = op == "mean"
        _check_summable("all_reduce", tensors, is_divided=is_mean)
        self._meet(f"all_reduce ({op})", tensors)
        return self._sums(tensors, tensors, divisor=len(self._order) if is_mean else 1)

    def average_gradients(self, owner: nn.Module | Iterable[Tensor], weight: float) -> None:
        """Replace gradients by the means of weight * gradient over all ranks, see `Mesh.average_gradients`.

        Raises:
            ConfigError: a gradient cannot be averaged.
            FlowError: another rank does something else.
            RuntimeError: another rank has ended.
        """
        import torch.distributed as dist

        parameters = _parameters(owner)
        own = [one.grad for one in parameters]
        _check_summable("average_gradients", [one for one in own if one is not None], is_divided=True)
        self._meet("average_gradients", parameters)
        has_any = torch.tensor([one is not None for one in own], dtype=torch.uint8, device="cpu")
        if parameters:
            dist.all_reduce(has_any, dist.ReduceOp.MAX, group=self._group)
        used = [number for number, is_there in enumerate(has_any.tolist()) if is_there]
        like = [parameters[number] for number in used]
        weighted = [own[number] if weight else None for number in used]
        for parameter, mean in zip(
            like, self._sums(weighted, like, weight or 1.0, len(self._order)), strict=True
        ):
            parameter.grad = mean

    def broadcast(self, owner: nn.Module | Iterable[Tensor]) -> None:
        """Set tensors to those of rank 0, see `Mesh.broadcast`.

        Raises:
            ConfigError: a tensor is not dense, or not on the CPU.
            FlowError: another rank does something else.
            RuntimeError: another rank has ended.
        """
        import torch.distributed as dist

        tensors = [*owner.parameters(), *owner.buffers()] if isinstance(owner, nn.Module) else list(owner)
        for one in tensors:
            if not isinstance(one, Tensor) or one.layout is not torch.strided or one.device.type != "cpu":
                raise ConfigError("broadcast: need a module, or tensors, which are dense and on the CPU")
        self._meet("broadcast", tensors)
        if not tensors:
            return
        # As bytes: gloo does not carry all dtypes.
        pieces = [one.detach().contiguous().reshape(-1).view(torch.uint8) for one in tensors]
        flat = torch.cat(pieces)
        dist.broadcast(flat, src=dist.get_global_rank(self._group, self._order[0]), group=self._group)
        with torch.no_grad():
            for one, piece in zip(tensors, torch.split(flat, [len(piece) for piece in pieces]), strict=True):
                # A copy, so that it is aligned.
                one.copy_(piece.clone().view(one.dtype).view(one.shape))

    def _meet(self, call: str, tensors: Sequence[Tensor]) -> None:
        import torch.distributed as dist

        shapes = ", ".join(f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}" for one in tensors)
        what = f"{call} of {len(tensors)} tensors: {shapes}"
        digest = hashlib.blake2b(what.encode(), digest_size=16).digest()
        found = torch.empty(len(self._order) * len(digest), dtype=torch.uint8, device="cpu")
        own = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        dist.all_gather_into_tensor(found, own, group=self._group)
        said = found.view(len(self._order), -1)
        others = [rank for rank, at in enumerate(self._order) if not torch.equal(said[at], own)]
        if others:
            raise FlowError(
                f"this rank is in {what[:200]}, and ranks {others} are in something else; all ranks have to make the same "
                "calls of their mesh, with the same shapes"
            )

    @torch.no_grad()
    def _sums(
        self, tensors: Sequence[Tensor | None], like: Sequence[Tensor], weight: float = 1.0, divisor: int = 1
    ) -> list[Tensor]:
        """Return sums of weight * tensor, divided, as views of flat buckets, each of which is one message.

        None counts as zeros with the shape and dtype in `like`.
        """
        import torch.distributed as dist

        found, sent = [one if one.numel() else torch.empty_like(one) for one in like], []
        for numbers in _buckets(like):
            pieces = [
                like[number].new_zeros(like[number].numel())
                if (one := tensors[number]) is None
                else one.reshape(-1)
                for number in numbers
            ]
            flat = torch.cat(pieces)
            flat = flat.to(_WIDE.get(flat.dtype, flat.dtype))
            if weight != 1:
                flat *= weight
            sent.append((numbers, flat, dist.all_reduce(flat, group=self._group, async_op=True)))
        for numbers, flat, work in sent:
            assert work is not None
            work.wait()
            if divisor != 1:
                flat /= divisor
            sizes = [like[number].numel() for number in numbers]
            for number, piece in zip(
                numbers, torch.split(flat.to(like[numbers[0]].dtype), sizes), strict=True
            ):
                found[number] = piece.view(like[number].shape)
        return found


def _buckets(like: Sequence[Tensor]) -> list[list[int]]:
    """Return the numbers of tensors of each bucket, all of one dtype; empty tensors are in none."""
    found: list[list[int]] = []
    open_buckets: dict[torch.dtype, tuple[list[int], int]] = {}
    for number, one in enumerate(like):
        if not one.numel():
            continue
        numbers, n_bytes = open_buckets.get(one.dtype, ([], _BUCKET_BYTES))
        if n_bytes + one.nbytes > _BUCKET_BYTES:
            numbers, n_bytes = [], 0
            found.append(numbers)
        numbers.append(number)
        open_buckets[one.dtype] = (numbers, n_bytes + one.nbytes)
    return found


def weigh_gradients(owner: nn.Module | Iterable[Tensor], weight: float) -> None:
    """Do what `RankGroup.average_gradients` does, where there is one rank.

    Raises:
        ConfigError: `owner` is no module, and has no parameters.
    """
    for one in _parameters(owner):
        if one.grad is not None and weight != 1.0:
            with torch.no_grad():
                one.grad = one.grad * weight if weight else torch.zeros_like(one.grad)


def _parameters(owner: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    parameters = list(owner.parameters() if isinstance(owner, nn.Module) else owner)
    if not all(isinstance(one, Tensor) for one in parameters):
        raise ConfigError("average_gradients: need a module, or its parameters")
    return [one for one in parameters if one.requires_grad]


def _check_summable(what: str, tensors: Sequence[Tensor], *, is_divided: bool) -> None:
    for one in tensors:
        if type(one) is not Tensor and not isinstance(one, nn.Parameter):
            raise ConfigError(f"{what}: got a {type(one).__name__}; need plain tensors")
        if one.layout is not torch.strided or one.device.type != "cpu":
            raise ConfigError(f"{what}: a tensor is {one.layout} on {one.device}; need dense ones on the CPU")
        if one.dtype not in _SUMMABLE:
            raise ConfigError(f"{what}: a tensor is {one.dtype}, which has no sum over ranks")
        if is_divided and not (one.is_floating_point() or one.is_complex()):
            raise ConfigError(f"{what}: a tensor is {one.dtype}, which has no means; use op='sum'")
