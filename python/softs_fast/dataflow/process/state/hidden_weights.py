"""Modules and optimizers of a role that its hooks would not find, because they are inside other objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import FlowError
from ...declare.attributes import attributes_of
from ...declare.roles import Role

__all__ = ["check_weights"]

_OPAQUE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, Tensor, Role)


def check_weights(name: str, role: Role) -> None:
    """Check that all modules and optimizers of a role are found, so that they are published and saved.

    A role with its own `modules` or `optimizers` has said which ones count.

    Args:
        name: Name of the role.
        role: Its object, after `setup`.

    Raises:
        FlowError: A module or an optimizer is inside an object that is neither of both.
    """
    if type(role).modules is not Role.modules or type(role).optimizers is not Role.optimizers:
        return
    known = {id(one) for module in role.modules().values() for one in _tensors(module)}
    known |= {id(one) for one in role.optimizers().values()}
    for path, value in _inside(role):
        kind = "optimizer" if isinstance(value, torch.optim.Optimizer) else "module"
        found = [value] if kind == "optimizer" else _tensors(value)
        if any(id(one) not in known for one in found):
            raise FlowError(
                f"role {name!r} has the {kind} {type(value).__name__} in {path}, where it would be neither published nor "
                "saved; make it an attribute of the role, or put it into a list or dict that is one; or override "
                "modules() and optimizers() to choose; a role that is placed with frozen=True may have it"
            )


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    return (*module.parameters(), *module.buffers())


def _inside(role: Role) -> Iterator[tuple[str, Any]]:
    """Yield the modules and optimizers in a role and in objects of it, with their paths; each object is looked at once."""
    seen = {id(role)}
    left = list(attributes_of(role))
    while left:
        path, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (nn.Module, torch.optim.Optimizer)):
            yield path, value
        elif isinstance(value, (set, frozenset)):
            left += [(f"{path}'s elements", one) for one in list(value)]
        elif not isinstance(value, _OPAQUE):
            left += [(f"{path}.{name}", one) for name, one in attributes_of(value)]
