"""DiLoCo: ranks train for many steps alone, then an outer optimizer takes the mean of what they have learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from softs_fast.averaging.reduction import (
    BufferRule,
    average_in_place,
    buffers_of,
    check_every,
    reduce_among_survivors,
    weights_of,
)
from softs_fast.collectives import Strategy
from softs_fast.errors import ConfigError


class DiLoCo:
    """Trains ranks apart, and joins what they have learned every `every` steps by an outer Nesterov step.

    Each rank keeps an *anchor*, the weights after the last outer step, equal on all ranks. The mean over the ranks of
    anchor minus weights is the gradient of the outer step, which moves the anchor; all ranks go on from there. With
    `lr=1, momentum=0` the outer step is the mean of the weights.

    The anchor and the outer momentum are kept in float32 (float64 for weights of float64), so this takes twice the
    memory of a float32 model. The weights are reduced in `n_fragments` parts in turn, each every `every` steps, so that
    the memory of a reduction is a part of it, and the traffic is spread.

    A rank that dies costs one repeated reduction among those that are left, if the strategy can `rebuild`, and no
    training step: anchor and weights are both still there.

    Making one is a call of all ranks: they begin with the weights and buffers of rank 0.

    Args:
        model: its parameters are trained; they must be floats. Tied ones count once.
        strategy: the group, after `init`.
        every: steps from one outer step of a parameter to the next; the same on all ranks.
        lr: learning rate of the outer step.
        momentum: of the outer step, from 0 to below 1.
        n_fragments: parts of the model that take their outer steps in turn, at most `every`.
        buffers: `average` takes the mean of float buffers and the largest of integers, with the last part; `own` keeps
            them.

    Raises:
        ConfigError: an argument is out of range, a parameter is no float, or the models of the ranks differ.
        PeerLost: a rank was lost.

    Example:
        >>> import tempfile, torch
        >>> from softs_fast.averaging import DiLoCo
        >>> from softs_fast.collectives import ShmStrategy
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = model.weight.data.fill_(1.0)
        >>> with tempfile.TemporaryDirectory() as folder, ShmStrategy().init(0, 1, folder) as strategy:
        ...     diloco = DiLoCo(model, strategy, every=2, lr=0.5, momentum=0.0)
        ...     for _ in range(2):
        ...         _ = model.weight.data.sub_(0.25)  # a training step
        ...         joined = diloco.step()
        >>> joined, model.weight.item()
        (True, 0.75)

    Source: DiLoCo, Douillard et al. 2023 (arXiv 2311.08105), algorithm 1; parts in turn as in Streaming DiLoCo,
    Douillard et al. 2025 (arXiv 2501.18512), section 2.1, without overlap.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        strategy: Strategy,
        *,
        every: int = 100,
        lr: float = 0.7,
        momentum: float = 0.9,
        n_fragments: int = 1,
        buffers: BufferRule = "average",
    ) -> None:
        check_every(every)
        self._weights = weights_of(model)
        self._buffers = buffers_of(model, buffers)
        if lr <= 0 or not 0 <= momentum < 1:
            raise ConfigError(f"lr is {lr}, momentum {momentum}; lr is above 0, momentum from 0 to below 1")
        if not 1 <= n_fragments <= min(every, len(self._weights)):
            raise ConfigError(
                f"n_fragments is {n_fragments}; with every={every} and {len(self._weights)} parameters it is from 1 to "
                f"{min(every, len(self._weights))}"
            )
        for name, weight in self._weights.items():
            if not weight.is_floating_point():
                raise ConfigError(f'parameter "{name}" is {weight.dtype}; an outer step needs floats')
        self._strategy = strategy
        self._every = every
        self._lr = lr
        self._momentum = momentum
        # The names of each part, by when its turn is.
        self._fragments = {
            number * every // n_fragments % every: names
            for number, names in enumerate(_fragments(self._weights, n_fragments), 1)
        }
        self._n_steps = 0
        self._n_outer = 0
        for tensor in (self._weights | self._buffers).values():
            strategy.broadcast_tensor(tensor, 0)
        self._anchor = {name: _master(weight) for name, weight in self._weights.items()}
        self._velocity = {name: torch.zeros_like(anchor) for name, anchor in self._anchor.items()}

    def step(self) -> bool:
        """Count a step; take the outer step of the parts that are due. Call it after `optimizer.step()`.

        Returns:
            Whether weights changed.

        Raises:
            PeerLost: a rank was lost, and the strategy cannot rebuild its group; the parts that are due are as they
                were.
            ConfigError: the ranks have made different numbers of steps.
        """
        self._n_steps += 1
        place = self._n_steps % self._every
        names = self._fragments.get(place, [])
        if names:
            self._outer_step(names)
        if place == 0:
            average_in_place(self._strategy, self._buffers, momentum=0.0)
        return bool(names)

    @property
    def counters(self) -> dict[str, int]:
        """Steps and outer steps of parts so far, and the ranks that there are."""
        return {"steps": self._n_steps, "outer_steps": self._n_outer, "ranks": self._strategy.size}

    def state_dict(self) -> dict[str, Any]:
        """Return anchor, momentum and counters; save it with the model, of which it has no copy.

        The tensors are those in use, as with optimizers of torch.
        """
        return {
            "n_steps": self._n_steps,
            "n_outer": self._n_outer,
            "anchor": dict(self._anchor),
            "momentum": dict(self._velocity),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called.

        Raises:
            ConfigError: the state is of a model with other parameters.
        """
        for what, own in (("anchor", self._anchor), ("momentum", self._velocity)):
            _check_fits(what, own, state[what])
        for what, own in (("anchor", self._anchor), ("momentum", self._velocity)):
            for name, tensor in own.items():
                tensor.copy_(state[what][name])
        self._n_steps = int(state["n_steps"])
        self._n_outer = int(state["n_outer"])

    def _outer_step(self, names: list[str]) -> None:
        """Move the anchor of some parameters by the mean of all ranks, and the parameters to it."""

        def deltas() -> dict[str, torch.Tensor]:
            # The step is a part of the names: ranks at different steps get an error, and mix nothing.
            return {
                f"{name} at step {self._n_steps}": self._anchor[name]
                - self._weights[name].to(self._anchor[name].dtype)
                for name in names
            }

        means = reduce_among_survivors(self._strategy, deltas)
        for name, mean in zip(names, means.values(), strict=True):
            velocity = self._velocity[name].mul_(self._momentum).add_(mean)
            self._anchor[name].sub_(mean.add_(velocity, alpha=self._momentum), alpha=self._lr)
            self._weights[name].copy_(self._anchor[name])
        self._n_outer += 1


def _master(weight: torch.Tensor) -> torch.Tensor:
    """Return a copy in the dtype in which the outer step computes."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32), copy=True)


def _fragments(weights: Mapping[str, torch.Tensor], n: int) -> Iterator[list[str]]:
    """Yield the names in `n` parts of neighbours, with about as many elements each, the same on every rank."""
    names = list(weights)
    rest = sum(weight.numel() for weight in weights.values())
    for n_left in range(n, 0, -1):
        part = [names.pop(0)]
        size = weights[part[0]].numel()
        while len(names) >= n_left and 2 * size + weights[names[0]].numel() <= 2 * rest / n_left:
            size += weights[names[0]].numel()
            part.append(names.pop(0))
        if n_left == 1:
            part += names
        rest -= size
        yield part


def _check_fits(what: str, own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    for name in own.keys() | given.keys():
        if name not in own or name not in given or own[name].shape != given[name].shape:
            here = list(own[name].shape) if name in own else "no such parameter"
            there = list(given[name].shape) if name in given else "nothing"
            raise ConfigError(f'{what} of "{name}": this model has {here}, the state {there}')
