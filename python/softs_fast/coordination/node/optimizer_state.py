"""The state of an optimizer as it was sent: torch casts parts of it to the dtype of the weights, and rebuilds containers."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["load_optimizer"]


def load_optimizer(optimizer: Optimizer, sent: dict[str, Any]) -> None:
    """Load a state into an optimizer, with the dtypes and containers that it was sent with.

    `Optimizer.load_state_dict` casts all floats of a parameter's state but `step` to the dtype of the parameter. An
    optimizer may keep others beside weights of 16 bits, such as `mu_product` of NAdam. It also makes other containers of
    those that it finds: a deque without its bound, nothing of a named tuple. An optimizer with a `load_state_dict` of its
    own is left to that.

    Args:
        optimizer: Optimizer over the same parameters as that of the source.
        sent: Its `state_dict()` on the source, with tensors in host memory.

    Raises:
        ValueError: The groups of parameters are not those of the source.
    """
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        optimizer.load_state_dict(sent)
        return
    own_groups = [dict(group) for group in optimizer.param_groups]
    parameters = [one for group in own_groups for one in group["params"]]
    numbers = [number for group in sent["param_groups"] for number in group["params"]]
    tensors = {
        number: {name: one for name, one in values.items() if isinstance(one, torch.Tensor)}
        if isinstance(values, dict)
        else values
        for number, values in sent["state"].items()
    }
    optimizer.load_state_dict({**sent, "state": tensors})
    for number, parameter in zip(numbers, parameters, strict=True):
        values = sent["state"].get(number)
        if not isinstance(values, dict):
            continue
        loaded = optimizer.state[parameter]
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                loaded[name] = _placed(value, parameter.device)
            elif value.dtype is not loaded[name].dtype:
                # torch has chosen the device: `step` stays on the host unless the optimizer is capturable or fused.
                loaded[name] = value.to(loaded[name].device)
    for own, group in zip(own_groups, optimizer.param_groups, strict=True):
        for name, value in group.items():
            # A rate that is a tensor stays on the device on which this worker has made it.
            if isinstance(value, torch.Tensor) and isinstance(own.get(name), torch.Tensor):
                group[name] = value.to(own[name].device)


def _placed(value: Any, device: torch.device) -> Any:
    """Return a container with its tensors on a device; the containers are those of a decoded state."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        for key in value:
            value[key] = _placed(value[key], device)
        return value
    if isinstance(value, list | deque):
        for at, one in enumerate(value):
            value[at] = _placed(one, device)
        return value
    if isinstance(value, tuple):
        return tuple.__new__(type(value), [_placed(one, device) for one in value])
    return value
