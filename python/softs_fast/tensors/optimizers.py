"""The state of optimizers, to the bit and type: taken for a checkpoint, and given to optimizers of the same parameters.

`torch.optim.Optimizer.load_state_dict` casts all floats of a parameter's state but `step` to the dtype of the parameter,
though an optimizer may keep others beside weights of 16 bits, such as `mu_product` of NAdam. It also makes other containers
of those that it finds: a deque without its bound, nothing of a named tuple. What `load_optimizer` loads stays as it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ConfigError
from .local import is_distributed

__all__ = ["OptimizerState", "give_state", "load_optimizer", "take_state", "templates"]


def load_optimizer(optimizer: Optimizer, sent: dict[str, Any]) -> None:
    """Load a state into an optimizer, with the dtypes and containers that it was sent with.

    An optimizer with a `load_state_dict` of its own is left to that.

    Args:
        optimizer: Optimizer over the same parameters as that of the source.
        sent: Its `state_dict()` on the source.

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
        number: {name: one for name, one in values.items() if isinstance(one, Tensor)}
        if isinstance(values, dict)
        else values
        for number, values in sent["state"].items()
    }
    optimizer.load_state_dict({**sent, "state": tensors})
    for number, parameter in zip(numbers, parameters, strict=True):
        values = sent["state"].get(number)
        if isinstance(values, dict):
            # In the order of the source.
            loaded = optimizer.state[parameter]
            optimizer.state[parameter] = {
                name: _typed(value, loaded[name])
                if isinstance(value, Tensor)
                else _placed(value, parameter.device)
                for name, value in values.items()
            }
    for own, group in zip(own_groups, optimizer.param_groups, strict=True):
        for name, value in group.items():
            # A rate that is a tensor stays on the device on which this worker has made it.
            if isinstance(value, Tensor) and isinstance(own.get(name), Tensor):
                group[name] = value.to(own[name].device)


@dataclass(frozen=True)
class OptimizerState:
    """State of one optimizer.

    Attributes:
        tensors: Tensors by the name of the parameter and that of the value, such as `net.weight` and `exp_avg`.
        rest: Plain values: type of the optimizer, options of groups, and of each parameter all values in their order, where
            a tensor of `tensors` is replaced by the type of its device if that is another one than that of the parameter.
    """

    tensors: dict[str, dict[str, Tensor]]
    rest: dict[str, Any]


def take_state(
    what: str, optimizer: Any, parameters: Mapping[str, Tensor], *, is_shared: bool
) -> OptimizerState:
    """Return the state of an optimizer; the tensors are its own.

    Args:
        what: Name of the optimizer, for errors.
        optimizer: A `torch.optim.Optimizer`.
        parameters: Parameters of all modules by name.
        is_shared: Whether several processes write one checkpoint.

    Raises:
        ConfigError: It updates a tensor of no module, or has state that processes cannot share.
    """
    if type(optimizer).state_dict is not Optimizer.state_dict:
        if is_shared:
            raise ConfigError(
                f"{what} is a {type(optimizer).__name__} with a state_dict of its own, expected that of "
                "torch.optim.Optimizer where several processes write one checkpoint; use another optimizer"
            )
        return OptimizerState({}, {"own": optimizer.state_dict()})
    names = _names(parameters)
    tensors: dict[str, dict[str, Tensor]] = {}
    values: dict[str, dict[str, Any]] = {}
    others: dict[Any, Any] = {}
    for key, state in optimizer.state.items():
        if not isinstance(key, Tensor):
            others[key] = state
            continue
        name = _name(what, key, names)
        values[name] = {}
        for part, value in state.items():
            if is_distributed(key) and not _is_whole_or_alike(value, key):
                raise ConfigError(
                    f"{what} has {part} of {name} in another form than {name}, of which each process has a part, so what the "
                    "others have of it is not known; use another optimizer"
                )
            if isinstance(value, Tensor):
                tensors.setdefault(name, {})[part] = value.detach()
                values[name][part] = [
                    "tensor",
                    "" if value.device.type == key.device.type else value.device.type,
                ]
            else:
                values[name][part] = ["value", value]
    groups = [
        {**group, "params": [_name(what, one, names) for one in group["params"]]}
        for group in optimizer.param_groups
    ]
    kind = type(optimizer).__qualname__
    return OptimizerState(tensors, {"type": kind, "groups": groups, "values": values, "others": others})


def templates(
    parameters: Mapping[str, Tensor], saved: Iterable[tuple[tuple[Any, ...], Any]]
) -> dict[str, dict[str, Tensor]]:
    """Return tensors that a checkpoint can be loaded into, like `OptimizerState.tensors`.

    Args:
        parameters: Parameters of all modules by name.
        saved: Path of each tensor in the state, and its metadata of torch.distributed.checkpoint.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for (name, part), meta in saved:
        parameter = parameters.get(name)
        if parameter is None:
            continue  # of another pipeline stage, or of a role with more parameters
        dtype = meta.properties.dtype
        if is_distributed(parameter) and parameter.shape == meta.size:
            tensor = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            tensor = torch.empty(meta.size, dtype=dtype, device="cpu")
        found.setdefault(name, {})[part] = tensor
    return found


def give_state(what: str, optimizer: Any, parameters: Mapping[str, Tensor], state: OptimizerState) -> None:
    """Give an optimizer the state that another one with the same parameters had.

    Raises:
        ConfigError: It is of another type, a parameter of it is not in the state, or groups have changed.
    """
    rest = state.rest
    if "own" in rest:
        optimizer.load_state_dict(rest["own"])
        return
    if (kind := type(optimizer).__qualname__) != rest.get("type", kind):
        raise ConfigError(
            f"the checkpoint has the state of {rest['type']} for {what}, and that is {kind}; use {rest['type']}"
        )
    names = _names(parameters)
    group_of = {name: group for group in rest["groups"] for name in group["params"]}
    groups = []
    for own in optimizer.param_groups:
        own_names = [_name(what, one, names) for one in own["params"]]
        lacking = [name for name in own_names if name not in group_of]
        if lacking:
            raise ConfigError(f"the checkpoint has no state of {what} for {', '.join(lacking[:4])}")
        saved = [{**group_of[name], "params": own_names} for name in own_names]
        if any(one != saved[0] for one in saved):
            raise ConfigError(
                f"{what} has {own_names[0]} and others in one group, and the checkpoint in several; have the groups "
                "that were saved"
            )
        groups.append(saved[0] if saved else {**own, "params": []})
    own_values = {
        name: values
        for name, values in rest["values"].items()
        if any(name in one["params"] for one in groups)
    }
    states = {
        name: {
            part: state.tensors[name][part] if kind == "tensor" else value
            for part, (kind, value) in values.items()
        }
        for name, values in own_values.items()
    }
    load_optimizer(optimizer, {"state": {**rest["others"], **states}, "param_groups": groups})
    for name, values in own_values.items():
        found = optimizer.state[parameters[name]]
        found.update(
            {part: found[part].cpu() for part, value in values.items() if value == ["tensor", "cpu"]}
        )


def _is_whole_or_alike(value: Any, parameter: Tensor) -> bool:
    """Return whether each process has all of a value, or the same part as of the parameter."""
    if isinstance(value, Tensor):
        return not value.dim() or (is_distributed(value) and value.shape == parameter.shape)
    parts = value.values() if isinstance(value, dict) else value
    return not isinstance(parts, Iterable) or not any(isinstance(one, Tensor) for one in parts)


def _typed(value: Tensor, loaded: Tensor) -> Tensor:
    # torch has chosen the device: `step` stays on the host unless the optimizer is capturable or fused.
    return loaded if value.dtype is loaded.dtype else value.to(loaded.device)


def _placed(value: Any, device: torch.device) -> Any:
    """Return a container with its tensors on a device; the containers are those of a decoded state."""
    if isinstance(value, Tensor):
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


def _names(parameters: Mapping[str, Tensor]) -> dict[int, str]:
    return {id(one): name for name, one in parameters.items()}


def _name(what: str, parameter: Tensor, names: Mapping[int, str]) -> str:
    if id(parameter) not in names:
        raise ConfigError(
            f"{what} updates a tensor of shape {tuple(parameter.shape)} that is in no module, so it is neither saved nor "
            "published; make it a parameter of a module, such as of nn.ParameterList"
        )
    return names[id(parameter)]
