"""The state of optimizers, to the bit and type: taken for a checkpoint, and given to optimizers of the same parameters.

`torch.optim.Optimizer.load_state_dict` casts the state of a parameter to its dtype and makes containers anew, so an
optimizer would not go on as it was. Here a checkpoint gets the tensors, and a second file what is no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....errors import FlowError

__all__ = ["OptimizerState", "give_state", "take_state", "templates"]


@dataclass(frozen=True)
class OptimizerState:
    """State of one optimizer.

    Attributes:
        tensors: Tensors by the name of the parameter and that of the value, such as `net.weight` and `exp_avg`.
        rest: Plain values: options of groups, and of each parameter all values in their order, where a tensor of
            `tensors` is replaced by the type of its device.
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
        parameters: Parameters of the role by name.
        is_shared: Whether several workers write one checkpoint.

    Raises:
        FlowError: It updates a tensor of no module, or has state that workers cannot share.
    """
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        if is_shared:
            raise FlowError(
                f"{what} is a {type(optimizer).__name__} with a state_dict of its own, expected that of "
                "torch.optim.Optimizer where a role is on several workers; use another optimizer"
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
            if isinstance(value, Tensor):
                tensors.setdefault(name, {})[part] = value.detach()
                values[name][part] = ["tensor", value.device.type]
            else:
                values[name][part] = ["value", value]
    groups = [
        {**group, "params": [_name(what, one, names) for one in group["params"]]}
        for group in optimizer.param_groups
    ]
    return OptimizerState(tensors, {"groups": groups, "values": values, "others": others})


def templates(
    parameters: Mapping[str, Tensor], saved: Iterable[tuple[tuple[Any, ...], Any]]
) -> dict[str, dict[str, Tensor]]:
    """Return tensors that a checkpoint can be loaded into, like `OptimizerState.tensors`.

    Args:
        parameters: Parameters of the role by name.
        saved: Path of each tensor in the state, and its metadata of torch.distributed.checkpoint.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for (name, part), meta in saved:
        parameter = parameters.get(name)
        if parameter is None:
            continue  # of another pipeline stage, or of a role with more parameters
        dtype = meta.properties.dtype
        if hasattr(parameter, "placements") and parameter.shape == meta.size:
            tensor = torch.empty_like(parameter.detach(), dtype=dtype)
        else:
            tensor = torch.empty(meta.size, dtype=dtype, device=parameter.device)
        found.setdefault(name, {})[part] = tensor
    return found


def give_state(what: str, optimizer: Any, parameters: Mapping[str, Tensor], state: OptimizerState) -> None:
    """Give an optimizer the state that another one with the same parameters had.

    Raises:
        FlowError: A parameter of the optimizer is not in the state, or groups have changed.
    """
    if "own" in state.rest:
        optimizer.load_state_dict(state.rest["own"])
        return
    names = _names(parameters)
    group_of = {name: group for group in state.rest["groups"] for name in group["params"]}
    optimizer.state.clear()
    optimizer.state.update(state.rest["others"])
    for own in optimizer.param_groups:
        own_names = [_name(what, one, names) for one in own["params"]]
        lacking = [name for name in own_names if name not in group_of]
        if lacking:
            raise FlowError(f"the checkpoint has no state of {what} for {', '.join(lacking[:4])}")
        groups = [group_of[name] for name in own_names]
        if any(_options(group) != _options(groups[0]) for group in groups):
            raise FlowError(
                f"{what} has {own_names[0]} and others in one group, and the checkpoint in several; have the groups "
                "that were saved"
            )
        own.update({key: _like(own.get(key), value) for key, value in _options(groups[0]).items()})
        for name, parameter in zip(own_names, own["params"], strict=True):
            if name in state.rest["values"]:
                optimizer.state[parameter] = _values(state, name, parameter)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _values(state: OptimizerState, name: str, parameter: Tensor) -> dict[str, Any]:
    found = {}
    for part, (kind, value) in state.rest["values"][name].items():
        if kind == "tensor":
            tensor = state.tensors[name][part]
            found[part] = tensor if tensor.device.type == value else tensor.to(_device(value, parameter))
        else:
            found[part] = value
    return found


def _device(kind: str, parameter: Tensor) -> torch.device:
    return parameter.device if parameter.device.type == kind else torch.device("cpu")


def _like(own: Any, saved: Any) -> Any:
    """Return an option of a group; a tensor is where that of the group was."""
    return saved.to(own.device) if isinstance(own, Tensor) and isinstance(saved, Tensor) else saved


def _names(parameters: Mapping[str, Tensor]) -> dict[int, str]:
    return {id(one): name for name, one in parameters.items()}


def _name(what: str, parameter: Tensor, names: Mapping[int, str]) -> str:
    if id(parameter) not in names:
        raise FlowError(
            f"{what} updates a tensor of shape {tuple(parameter.shape)} that is in no module of the role, so it is "
            "neither saved nor published; make it a parameter of a module, such as of nn.ParameterList"
        )
    return names[id(parameter)]
