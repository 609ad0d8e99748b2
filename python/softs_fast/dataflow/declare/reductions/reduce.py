"""What a mesh offers: sums, averages of gradients, and the tensors of rank 0, along one of its dimensions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ....errors import ConfigError
from .buckets import Buckets
from .gloo import GlooRanks
from .sums import check_summable

__all__ = ["OPS", "all_reduce", "average_gradients", "broadcast", "scale_gradients"]

OPS = ("sum", "mean")


def all_reduce(group: GlooRanks, tensors: Sequence[Tensor], op: str) -> list[Tensor]:
    """Return the sum or mean of each tensor over all ranks, in their order; new tensors.

    Args:
        group: Ranks of the sum; all of them call this with the same shapes, dtypes and `op`.
        tensors: Tensors on the CPU.
        op: Operation, one of `OPS`.

    Raises:
        ConfigError: a tensor cannot be summed.
        FlowError: another rank does something else, or has ended.

    Source: own, see docs/dataflow_workers.md, "Sums over ranks".
    """
    check_summable("all_reduce", tensors, is_divided=op == "mean")
    what = f"all_reduce ({op}) of {_said(tensors)}"
    with torch.no_grad():
        buckets = Buckets(tensors, group.size)
        sums = group.sum(buckets.join(tensors, tensors), group.size if op == "mean" else 1, what)
        return buckets.part(sums, tensors)


def average_gradients(group: GlooRanks, owner: nn.Module | Iterable[Tensor], weight: float) -> None:
    """Replace gradients by the sums over ranks of weight * gradient, in the order of ranks, divided by their number.

    Args:
        group: Ranks of the sum; all of them call this with parameters of the same shapes and dtypes.
        owner: Module, or parameters. A parameter without a gradient on this rank counts as zero; one that has none
            on any rank gets none.
        weight: Weight of this rank; a gradient of weight 0 counts as zero, whatever it is.

    Raises:
        ConfigError: a gradient cannot be averaged.
        FlowError: another rank does something else, or has ended.

    Source: own, see docs/dataflow_workers.md, "Sums over ranks".
    """
    parameters = _parameters(owner)
    own = [one.grad for one in parameters]
    check_summable("average_gradients", [one for one in own if one is not None], is_divided=True)
    has_any = group.any(f"average_gradients of {_said(parameters)}", [one is not None for one in own])
    used = [number for number, is_there in enumerate(has_any) if is_there]
    like = [parameters[number] for number in used]
    with torch.no_grad():
        buckets = Buckets(like, group.size)
        joined = buckets.join([own[number] if weight else None for number in used], like)
        if weight not in (0.0, 1.0):
            for one in joined:
                one *= weight
        for parameter, mean in zip(like, buckets.part(group.sum(joined, group.size), like), strict=True):
            parameter.grad = mean  # a view of its bucket, which saves a copy


def scale_gradients(owner: nn.Module | Iterable[Tensor], weight: float) -> None:
    """Do what `average_gradients` does with one rank.

    Raises:
        ConfigError: `owner` is no module, and has no parameters.
    """
    for one in _parameters(owner):
        if one.grad is not None and weight != 1.0:
            with torch.no_grad():
                one.grad = one.grad * weight if weight else torch.zeros_like(one.grad)


def broadcast(group: GlooRanks, owner: nn.Module | Iterable[Tensor]) -> None:
    """Set tensors to those of rank 0: parameters and buffers of a module, or tensors.

    Args:
        group: the ranks; all of them call this with the same shapes and dtypes.
        owner: a module, or tensors on the CPU.

    Raises:
        ConfigError: a tensor is not dense, or not on the CPU.
        FlowError: another rank does something else, or has ended.
    """
    tensors = [*owner.parameters(), *owner.buffers()] if isinstance(owner, nn.Module) else list(owner)
    for one in tensors:
        if not isinstance(one, Tensor) or one.layout is not torch.strided or one.device.type != "cpu":
            raise ConfigError("broadcast: need a module, or tensors, which are dense and on the CPU")
    group.any(f"broadcast of {_said(tensors)}")
    with torch.no_grad():
        buckets = Buckets(tensors, group.size)
        for mine, first in zip(
            tensors, buckets.part(group.from_first(buckets.join(tensors, tensors)), tensors), strict=True
        ):
            mine.copy_(first)


def _parameters(owner: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    parameters = list(owner.parameters() if isinstance(owner, nn.Module) else owner)
    if not all(isinstance(one, Tensor) for one in parameters):
        raise ConfigError("average_gradients: need a module, or its parameters")
    return [one for one in parameters if one.requires_grad]


def _said(tensors: Sequence[Tensor]) -> str:
    return f"{len(tensors)} tensors: {', '.join(_one_said(one.dtype, one.shape) for one in tensors)}"


@functools.lru_cache(maxsize=1024)
def _one_said(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
