"""DiLoCo: ranks train for many steps alone, then an outer optimizer takes the mean of what they have learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from softs_fast.averaging.matching import Agreed, BufferRule, Found, agree, warn_of
from softs_fast.averaging.reduction import average_in_place, check_every, reduce_among_survivors
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

    The tensors of the model are looked up at each outer step, so they may be replaced. A parameter that is frozen has no
    outer steps after the next one. One that is added, unfrozen or resized later is set to the mean of the ranks at its
    first outer step, which makes its anchor. Of a distributed model, such as that of FSDP2, the shards of this process
    are trained: then the ranks of the strategy are those that have the same shards.

    Making one is a call of all ranks: they begin with the weights and buffers of rank 0, frozen ones included.

    Args:
        model: Its trainable parameters take outer steps; tied ones count once.
        strategy: The group, after `init`.
        every: Steps from one outer step of a parameter to the next; the same on all ranks.
        lr: Learning rate of the outer step.
        momentum: Momentum of the outer step, from 0 to below 1.
        n_fragments: Parts of the model that take their outer steps in turn, at most `every`.
        buffers: The same as for `AverageAll`; averaged with the last part.

    Raises:
        ConfigError: an argument is out of range, a trainable parameter has no memory or no dtype that can be averaged,
            or the models of the ranks differ; on all ranks.
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
        found = Found.of(model, buffers)
        if lr <= 0 or not 0 <= momentum < 1:
            raise ConfigError(f"lr is {lr}, momentum {momentum}; lr is above 0, momentum from 0 to below 1")
        n_most = min(every, max(1, len(found.trained)))
        if not 1 <= n_fragments <= n_most:
            raise ConfigError(
                f"n_fragments is {n_fragments}; with every={every} and {len(found.trained)} parameters it is from 1 to "
                f"{n_most}"
            )
        self._model = model
        self._buffers = buffers
        self._strategy = strategy
        self._every = every
        self._lr = lr
        self._momentum = momentum
        self._n_steps = 0
        self._n_outer = 0
        self._warned: set[str] = set()
        agreed = self._agree(found)
        everything = (*agreed.weights, *agreed.frozen, *agreed.buffers, *agreed.copied)
        for name in everything:
            strategy.broadcast_tensor(found.local[name], 0)
        found.mark_written(everything)
        # In the order of the model, so that a part has neighbours.
        weights = {name: weight for name, weight in found.local.items() if name in set(agreed.weights)}
        # The names of each part, by when its turn is.
        self._fragments = {
            number * every // n_fragments % every: names
            for number, names in enumerate(_fragments(weights, n_fragments) if weights else [[]], 1)
        }
        # Parameters that were trained at their last outer step.
        self._trained = set(weights)
        self._anchor = {name: _master(weight) for name, weight in weights.items()}
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
        if place not in self._fragments and place:
            return False
        found = Found.of(self._model, self._buffers, self._trained)
        agreed = self._agree(found)
        names = [name for name in self._fragments.get(place, ()) if name in agreed.weights]
        if place == 0:
            fragments = set().union(*self._fragments.values())
            names += [name for name in agreed.weights if name not in fragments]
        if names:
            self._outer_step(found.pick(names))
            found.mark_written(names)
        self._trained = self._trained.difference(names) | found.still_trained(names)
        if place == 0:
            average_in_place(
                self._strategy, {}, buffers=found.pick(agreed.buffers), copied=found.pick(agreed.copied)
            )
            found.mark_written((*agreed.buffers, *agreed.copied))
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
        weights = Found.of(self._model, "own").local
        for what, own in (("anchor", self._anchor), ("momentum", self._velocity)):
            _check_fits(what, own, weights, state[what])
        for what, own in (("anchor", self._anchor), ("momentum", self._velocity)):
            own.update(
                {name: _master(tensor).to(weights[name].device) for name, tensor in state[what].items()}
            )
        self._trained |= self._anchor.keys()
        self._n_steps = int(state["n_steps"])
        self._n_outer = int(state["n_outer"])

    def _agree(self, found: Found) -> Agreed:
        agreed = agree(self._strategy, found)
        warn_of(agreed.left_out, self._warned)
        return agreed

    def _outer_step(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Move the anchor of some parameters by the mean of all ranks, and the parameters to it."""
        for name, weight in weights.items():
            self._fit(name, weight)

        def deltas() -> dict[str, torch.Tensor]:
            # The step is a part of the names: ranks at different steps get an error, and mix nothing.
            return {
                f"{name} at step {self._n_steps}": self._anchor[name] - weight.to(self._anchor[name].dtype)
                if name in self._anchor
                else _master(weight)
                for name, weight in weights.items()
            }

        means = reduce_among_survivors(self._strategy, deltas)
        for (name, weight), mean in zip(weights.items(), means.values(), strict=True):
            if name in self._anchor:
                velocity = self._velocity[name].mul_(self._momentum).add_(mean)
                self._anchor[name].sub_(mean.add_(velocity, alpha=self._momentum), alpha=self._lr)
            else:
                self._anchor[name], self._velocity[name] = mean, torch.zeros_like(mean)
            weight.copy_(self._anchor[name])
        self._n_outer += 1

    def _fit(self, name: str, weight: torch.Tensor) -> None:
        """Bring anchor and momentum where a parameter is now; drop those of one with another shape."""
        for kept in (self._anchor, self._velocity):
            if name in kept and kept[name].shape != weight.shape:
                del kept[name]
            elif name in kept:
                wider = torch.promote_types(kept[name].dtype, weight.dtype)
                kept[name] = kept[name].to(weight.device, wider)


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


def _check_fits(
    what: str,
    own: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor],
) -> None:
    for name in own.keys() | given.keys():
        if name not in weights or name not in given or weights[name].shape != given[name].shape:
            here = list(weights[name].shape) if name in weights else "no such parameter"
            there = list(given[name].shape) if name in given else "nothing"
            raise ConfigError(f'{what} of "{name}": this model has {here}, the state {there}')
