"""Reductions of weights that outlive the death of a rank: what was sent is still there, so it is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol, get_args, runtime_checkable

import torch

from softs_fast.collectives import Strategy
from softs_fast.errors import ConfigError, PeerLost

BufferRule = Literal["average", "own"]

# Bytes of weights that are reduced at once: the copies of a whole model would double its memory.
_PART_BYTES = 32 << 20
# Weights are summed in a wider dtype than they have, so that a mean is rounded once.
_WIDER = {torch.float32: torch.float64, torch.float16: torch.float32, torch.bfloat16: torch.float32}


@runtime_checkable
class Rebuilds(Protocol):
    """A strategy that can go on without the ranks that it has lost."""

    def rebuild(self) -> None:
        """Form a new group of the remaining ranks."""


def reduce_among_survivors(
    strategy: Strategy, make: Callable[[], Mapping[str, torch.Tensor]], op: str = "mean"
) -> Mapping[str, torch.Tensor]:
    """Reduce the tensors of `make` over all ranks; after a death, those of the ranks that are left.

    All ranks that are left repeat the same reduction, or none does: `rebuild` finds out if some have its result. With
    `ShmStrategy` a death never causes that, since every rank had published the last epoch of a call of which one rank
    has the result.

    Args:
        strategy: the group.
        make: returns the tensors by name, new copies at each call; the contents after a failure are undefined.
        op: the reduction.

    Returns:
        The reduced tensors.

    Raises:
        PeerLost: a rank was lost, and the strategy cannot rebuild its group, or did so without this rank.
        ConfigError: ranks differ in names, shapes or dtypes; a hierarchy has no store to rebuild in; or some ranks have
            the result that others lack, so that these must not repeat the reduction alone.
    """
    while True:
        tensors = make()
        try:
            strategy.all_reduce_gradients(tensors, op)
        except PeerLost:
            if not isinstance(strategy, Rebuilds):
                raise
            strategy.rebuild()
        else:
            return tensors


def average_in_place(strategy: Strategy, tensors: Mapping[str, torch.Tensor], *, momentum: float) -> None:
    """Set floats to `momentum` times themselves plus the rest of their mean over all ranks, others to the largest.

    After an exception all tensors are as they were.

    Raises:
        PeerLost: as `reduce_among_survivors`.
        ConfigError: as `reduce_among_survivors`.
    """
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    others = {name: tensor for name, tensor in tensors.items() if name not in floats}
    try:
        for op, group in (("mean", floats), ("max", others)):
            for part in _parts(group):
                reduced = reduce_among_survivors(strategy, lambda part=part: _widened(part), op)  # type: ignore[misc]
                with torch.no_grad():
                    for name, tensor in part.items():
                        before.append((tensor, tensor.clone()))
                        share = momentum if op == "mean" else 0.0
                        tensor.copy_(_blend(tensor, reduced[name], share))
    except BaseException:
        with torch.no_grad():
            for tensor, old in before:
                tensor.copy_(old)
        raise


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters of a model by name, tied ones once, without their gradients."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def buffers_of(model: torch.nn.Module, rule: BufferRule) -> dict[str, torch.Tensor]:
    """Return the buffers that ranks share by a rule, by name.

    Raises:
        ConfigError: the rule is unknown.
    """
    if rule not in get_args(BufferRule):
        raise ConfigError(f'buffers is "{rule}"; known are {", ".join(get_args(BufferRule))}')
    return {name: buffer.detach() for name, buffer in model.named_buffers()} if rule == "average" else {}


def check_every(every: int) -> None:
    """Raise ConfigError unless `every` counts steps."""
    if not isinstance(every, int) or every < 1:
        raise ConfigError(f"every is {every!r}; it counts steps, from 1")


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
