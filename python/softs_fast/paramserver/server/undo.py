"""What a step changes, so that one of which the result is not finite changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim

from ..wire.tensors import is_finite

__all__ = ["Undo"]


class Undo:
    """Weights, buffers and the state of the optimizer before a step.

    Args:
        module: Model with the parameters and buffers that the step changes.
        optimizer: Optimizer of the step.
    """

    def __init__(self, module: nn.Module, optimizer: optim.Optimizer) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        self._tensors = [(one, one.detach().clone()) for one in tensors]
        self._optimizer = optimizer
        # What a state says of a parameter is of that parameter, not of a copy.
        memo = {id(one): one for one in tensors}
        self._state = {of: copy.deepcopy(one, memo) for of, one in optimizer.state.items()}
        self._groups = [
            {name: copy.deepcopy(one, memo) for name, one in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    def restore(self) -> None:
        """Make all as it was."""
        with torch.no_grad():
            for one, before in self._tensors:
                one.copy_(before)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, was in zip(self._optimizer.param_groups, self._groups, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(was, params=parameters)

    def overflowed(self, names: Sequence[tuple[str, Tensor]]) -> str | None:
        """Return which tensor of the optimizer the step has made infinite or NaN; None if there is none.

        Args:
            names: Names of the parameters.
        """
        for name, parameter in names:
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if _is_broken(value) and not _is_broken(self._state.get(parameter, {}).get(key)):
                    return f"{key} of {name}"
        return None


def _is_broken(value: Any) -> bool:
    # A number may be infinite by design, such as the best loss so far; a moment of each element may not.
    return (
        isinstance(value, Tensor)
        and value.dim() > 0
        and value.is_floating_point()
        # Torch has no arithmetic of a single byte.
        and not is_finite((value.float() if value.dtype.itemsize == 1 else value).reshape(-1))
    )
