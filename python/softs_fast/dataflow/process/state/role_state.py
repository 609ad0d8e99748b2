"""What roles have beside modules and optimizers: schedulers, and generators of random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import FlowError
from ...declare.attributes import attributes_of
from ...declare.hooks import LoadState, SaveState
from ...declare.roles import Placement, Role
from . import files
from .random_state import generators_of, process_state, restore_generators, restore_process

__all__ = ["load_state", "save_state"]

_FILE = "state.pt"


def save_state(hook: SaveState, objects: Callable[[Placement], Role], *, has_process: bool) -> None:
    """Save the roles of a worker.

    Args:
        hook: Hook that says which roles are saved, and where.
        objects: Function that returns the object of a role.
        has_process: Whether this process runs these roles alone, so that its random numbers are theirs.

    Raises:
        FlowError: a scheduler has a state that cannot be saved.
        OSError: it cannot be written.
    """
    hook.folder.mkdir(mode=0o700)
    states = {role.name: _own_state(objects(role)) for role in hook.roles}
    names = ", ".join(states)
    state = {"process": process_state() if has_process else None, "roles": states}
    files.write(hook.folder / _FILE, f"the state of roles {names}", state)


def load_state(hook: LoadState, objects: Callable[[Placement], Role], *, has_process: bool) -> None:
    """Load what `save_state` has saved.

    Raises:
        FlowError: a file cannot be read, or the object lacks what was saved.
    """
    state = files.read(hook.folder / _FILE)
    for role in hook.roles:
        _restore_own(role.name, objects(role), state["roles"].get(role.name, {}))
    if has_process and state["process"] is not None:
        restore_process(state["process"])


def _own_state(one: Role) -> dict[str, Any]:
    return {
        "generators": generators_of(one),
        "others": {name: value.state_dict() for name, value in _others(one).items()},
    }


def _restore_own(name: str, one: Role, state: Mapping[str, Any]) -> None:
    restore_generators(one, state.get("generators", {}))
    others = _others(one)
    for attribute, saved in state.get("others", {}).items():
        if attribute not in others:
            raise FlowError(f"the save has a state of {name}.{attribute}, and the role has no such attribute")
        others[attribute].load_state_dict(saved)


def _others(one: Role) -> dict[str, Any]:
    """Return attributes with a state that are no module and no optimizer, such as schedulers of learning rates."""

    def has(value: object, names: Sequence[str]) -> bool:
        return all(callable(getattr(value, name, None)) for name in names)

    return {
        name: value
        for name, value in attributes_of(one)
        if has(value, ("state_dict", "load_state_dict"))
        and not hasattr(value, "parameters")
        and not hasattr(value, "param_groups")
    }
