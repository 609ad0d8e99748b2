"""What a step changes, so that one of which the result is not finite changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim

from ...wire.manifest import Manifest
from ...wire.tensors import Contents, is_finite, load_into

__all__ = ["Undo"]


class Undo:
    """Weights, buffers and the state of the optimizer before a step.

    The float32 weights that workers have are used for the model, and the copies of one step hold those of the next one:
    taking new memory costs as much as filling it.

    Args:
        module: Model with the parameters and buffers that a step changes.
        manifest: Names of these.
    """

    def __init__(self, module: nn.Module, manifest: Manifest) -> None:
        self._module = module
        self._manifest = manifest
        self._state: dict[Any, Any] = {}

    @torch.no_grad()
    def keep(self, optimizer: optim.Optimizer, before: Contents) -> None:
        """Keep all as it is now.

        Args:
            optimizer: Optimizer of the step.
            before: Weights and buffers as they are now; they must stay as they are.
        """
        self._optimizer = optimizer
        self._before = before
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        travels = {entry.name for entry in (*self._manifest.parameters, *self._manifest.buffers)}
        self._doubles = [
            (one, one.detach().clone())
            for name, one in named
            if name in travels and one.dtype is torch.float64
        ]
        # What a state says of a parameter is of that parameter, not of a copy.
        memo: dict[int, Any] = {id(one): one for _, one in named}
        for of, state in optimizer.state.items():
            old = self._state.get(of)
            if isinstance(state, dict) and isinstance(old, dict):
                _reuse(state, old, memo)
        self._state = {of: copy.deepcopy(one, memo) for of, one in optimizer.state.items()}
        self._groups = [
            {name: copy.deepcopy(one, memo) for name, one in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Make all as it was."""
        load_into(self._module, self._manifest, self._before)
        for one, before in self._doubles:
            one.copy_(before)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        # The optimizer has these copies now.
        self._state = {}
        for group, was in zip(self._optimizer.param_groups, self._groups, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(was, params=parameters)

    def overflowed(self) -> str | None:
        """Return which tensor of the optimizer the step has made infinite or NaN; None if there is none."""
        for name, parameter in self._module.named_parameters():
            before = self._state.get(parameter, {})
            for key, value in self._optimizer.state.get(parameter, {}).items():
                # A number may be infinite by design, such as the best loss so far; a moment of each element may not.
                if parameter.dim() and isinstance(value, Tensor) and not value.dim():
                    continue
                if _is_broken(value) and not _is_broken(before.get(key)):
                    return f"{key} of {name}"
        return None


def _reuse(state: Mapping[Any, Any], old: Mapping[Any, Any], memo: dict[int, Any]) -> None:
    """Copy tensors into those of an older copy, and have `deepcopy` take these."""
    for key, value in state.items():
        room = old.get(key)
        if (
            id(value) not in memo
            and type(value) is type(room) is Tensor
            and (value.shape, value.dtype, value.stride()) == (room.shape, room.dtype, room.stride())
        ):
            memo[id(value)] = room.copy_(value)


def _is_broken(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        # Torch has no arithmetic of a single byte.
        and not is_finite((value.float() if value.dtype.itemsize == 1 else value).reshape(-1))
    )
