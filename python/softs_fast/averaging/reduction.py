"""Reductions of weights that outlive the death of a rank: what was sent is still there, so it is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, TypeVar, runtime_checkable

import torch

from softs_fast.collectives import Strategy
from softs_fast.errors import ConfigError, PeerLost

R = TypeVar("R")

# Bytes of weights that are reduced at once: the copies of a whole model would double its memory.
_PART_BYTES = 32 << 20
# Weights are summed in a wider dtype than they have, so that a mean is rounded once.
_WIDER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}


@runtime_checkable
class Rebuilds(Protocol):
    """A strategy that can go on without the ranks that it has lost."""

    def rebuild(self) -> None:
        """Form a new group of the remaining ranks."""


@runtime_checkable
class RoundsOnce(Protocol):
    """A strategy that accumulates means in a wider dtype, so that they need no wider copies."""

    def average_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set tensors to their mean over all ranks, rounded once; after an exception their contents are undefined."""


def among_survivors(strategy: Strategy, call: Callable[[], R]) -> R:
    """Return what a collective call returns; after a death, that of the ranks that are left.

    All ranks that are left repeat the same call, or none does: `rebuild` finds out if some have its result. With
    `ShmStrategy` a death never causes that, since every rank had published the last epoch of a call of which one rank
    has the result.

    Args:
        strategy: the group.
        call: uses the strategy; what it leaves behind after a failure is undefined.

    Raises:
        PeerLost: a rank was lost, and the strategy cannot rebuild its group, or did so without this rank.
        ConfigError: a hierarchy has no store to rebuild in; or some ranks have the result that others lack, so that these
            must not repeat the call alone.
    """
    while True:
        try:
            return call()
        except PeerLost:
            if not isinstance(strategy, Rebuilds):
                raise
            strategy.rebuild()


def reduce_among_survivors(
    strategy: Strategy, make: Callable[[], Mapping[str, torch.Tensor]], op: str = "mean"
) -> Mapping[str, torch.Tensor]:
    """Reduce the tensors of `make` over all ranks, as `among_survivors`.

    Args:
        strategy: the group.
        make: returns the tensors by name, new copies at each call; the contents after a failure are undefined.
        op: the reduction.

    Returns:
        The reduced tensors.

    Raises:
        PeerLost: as `among_survivors`.
        ConfigError: as `among_survivors`, or ranks differ in names, shapes or dtypes.
    """

    def reduce() -> Mapping[str, torch.Tensor]:
        tensors = make()
        strategy.all_reduce_gradients(tensors, op)
        return tensors

    return among_survivors(strategy, reduce)


def average_in_place(
    strategy: Strategy,
    weights: Mapping[str, torch.Tensor],
    *,
    momentum: float = 0.0,
    buffers: Mapping[str, torch.Tensor] = MappingProxyType({}),
    copied: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:
    """Set tensors to what they are on average over all ranks. After an exception all of them are as they were.

    Args:
        strategy: the group.
        weights: floats; set to `momentum` times themselves plus the rest of their mean.
        momentum: share of the own weights that stays.
        buffers: floats are set to their mean, others to the largest.
        copied: set to those of the first rank.

    Raises:
        PeerLost: as `reduce_among_survivors`.
        ConfigError: as `reduce_among_survivors`.
    """
    changed = {**weights, **buffers, **copied}
    # Copied before any of them changes: parameters may share memory, such as a matrix and its transpose.
    before = {name: tensor.clone() for name, tensor in changed.items()}
    floats = {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()}
    others = {name: tensor for name, tensor in buffers.items() if name not in floats}
    with torch.no_grad():
        try:
            for group, share in ((weights, momentum), (floats, 0.0)):
                for part in _parts(group):
                    _average_part(strategy, part, before, share)
            for part in _parts(others):
                own = {name: before[name] for name in part}
                largest = reduce_among_survivors(strategy, lambda own=own: _widened(own), "max")  # type: ignore[misc]
                for name, tensor in part.items():
                    tensor.copy_(largest[name])
            for _, tensor in sorted(copied.items()):
                tensor.copy_(among_survivors(strategy, lambda tensor=tensor: _of_first(strategy, tensor)))  # type: ignore[misc]
        except BaseException:
            for name, tensor in changed.items():
                tensor.copy_(before[name])
            raise


def check_every(every: int) -> None:
    """Raise ConfigError unless `every` counts steps."""
    if not isinstance(every, int) or every < 1:
        raise ConfigError(f"every is {every!r}; it counts steps, from 1")


def _average_part(
    strategy: Strategy, part: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor], momentum: float
) -> None:
    """Set tensors to `momentum` times what they were before plus the rest of the mean."""
    if isinstance(strategy, RoundsOnce) and not momentum:
        is_first = True

        def average() -> None:
            nonlocal is_first
            if not is_first:
                for name, tensor in part.items():
                    tensor.copy_(before[name])
            is_first = False
            strategy.average_tensors(part)

        among_survivors(strategy, average)
        return
    own = {name: before[name] for name in part}
    means = reduce_among_survivors(strategy, lambda: _widened(own))
    for name, tensor in part.items():
        tensor.copy_(_blend(own[name], means[name], momentum))


def _of_first(strategy: Strategy, tensor: torch.Tensor) -> torch.Tensor:
    copy = tensor.clone()
    strategy.broadcast_tensor(copy, 0)
    return copy


def _parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors in parts of a limited size, the same on every rank."""
    part: dict[str, torch.Tensor] = {}
    n_bytes = 0
    for name in sorted(tensors):
        size = tensors[name].numel() * tensors[name].element_size()
        if part and n_bytes + size > _PART_BYTES:
            yield part
            part, n_bytes = {}, 0
        part[name] = tensors[name]
        n_bytes += size
    if part:
        yield part


def _widened(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: tensor.to(_WIDER.get(tensor.dtype, tensor.dtype), copy=True) for name, tensor in tensors.items()
    }


def _blend(own: torch.Tensor, mean: torch.Tensor, momentum: float) -> torch.Tensor:
    return own.to(mean.dtype) * momentum + mean * (1 - momentum) if momentum else mean
