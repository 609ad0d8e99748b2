"""What all workers of a job have in common: weights, optimizer, and what else must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...collectives import Strategy
from ...errors import ConfigError, WireError
from .state_tree import MAX_TREE_BYTES, decode_tree, encode_tree


class Stateful(Protocol):
    """An object with a state, such as a scheduler of learning rates."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on with a state."""


class TrainingState:
    """The state of a training, which a worker copies from another one.

    Args:
        model: its gradients are reduced; its parameters and buffers are copied.
        optimizer: applies the gradients.
        others: more objects with a state, by name.
        apply: applies the reduced gradients, in place of `optimizer.step()`: to clip them, or to step a scheduler. It
            must depend on nothing but this state and the gradients, so that all workers do the same.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: dict[str, Stateful] | None = None,
        apply: Callable[[], object] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer, **(others or {})}
        self._apply = apply or optimizer.step

    def gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients by name; zeros where there is none, because other workers may have one."""
        found = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                found[name] = parameter.grad
        return found

    def apply(self) -> None:
        """Apply the gradients, and drop them."""
        self._apply()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def copy(self, strategy: Strategy, source: int, *, is_kept: bool) -> None:
        """Copy the state of one rank to others; a call of all ranks.

        Args:
            strategy: of the ranks.
            source: the rank with the state.
            is_kept: whether this rank has the state already.

        Raises:
            PeerLost: a rank was lost; the state is as it was.
            WireError: the source's state is malformed.
            ConfigError: it does not fit the model, the optimizer or the other objects.
        """
        if strategy.rank == source:
            text, tensors = encode_tree({name: part.state_dict() for name, part in self._parts.items()})
            strategy.broadcast_tensor(torch.tensor([len(text)]), source)
            strategy.broadcast_tensor(torch.frombuffer(bytearray(text), dtype=torch.uint8), source)
            for tensor in tensors:
                if tensor.numel():
                    strategy.broadcast_tensor(_bytes_of(tensor.detach().cpu()), source)
            return
        length = torch.zeros(1, dtype=torch.int64)
        strategy.broadcast_tensor(length, source)
        if not 0 < int(length) <= MAX_TREE_BYTES:
            raise WireError(f"the source announces a state of {int(length)} bytes; at most {MAX_TREE_BYTES}")
        tree = torch.empty(int(length), dtype=torch.uint8)
        strategy.broadcast_tensor(tree, source)

        def receive(tensor: torch.Tensor) -> None:
            if tensor.numel():
                strategy.broadcast_tensor(_bytes_of(tensor), source)

        states = decode_tree(tree.numpy().tobytes(), receive)
        if not is_kept:
            self._load(states)

    def _load(self, states: Any) -> None:
        if not isinstance(states, dict) or states.keys() != self._parts.keys():
            raise ConfigError(f"the source has {list(states)}; this worker has {list(self._parts)}")
        for name, part in self._parts.items():
            try:
                part.load_state_dict(states[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise ConfigError(f'the state of the source does not fit "{name}": {error}') from error


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor as bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
