"""The objects of roles in this process, and what hooks do with their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import FlowError
from ..declare.hooks import (
    Evaluate,
    Hook,
    Load,
    LoadState,
    Offload,
    ParamRealloc,
    Publish,
    Save,
    SaveState,
    UserHook,
    transfers,
)
from ..declare.ranks import heads_of
from ..declare.roles import Mesh, Placement, Role
from ..master.rows.tags import checked_name
from ..store.values import plain_number
from ..store.weights.forms import Held, HeldForms, twins_of
from ..store.weights.held import check_tensors, held_tensors, reshard, warn_of_rest
from .devices import wait_for_devices
from .groups import Groups
from .state import checkpoints
from .state.hidden_weights import check_weights
from .state.role_state import load_state, save_state

__all__ = ["Objects", "numbers_of", "tensors_of"]

#: Numbers that a function may return; messages have no more.
_MOST_NUMBERS = 1 << 12


class Objects:
    """One object for each role that is in this process.

    Args:
        roles: Roles of the flow.
        worker: Number of the worker that this process is; None: all roles are here.
        groups: Process groups of the roles; None: each role is one object.
    """

    def __init__(
        self, roles: Sequence[Placement], worker: int | None = None, groups: Groups | None = None
    ) -> None:
        self._worker = worker
        self._groups = groups
        self._roles = {role.name: role for role in roles if worker is None or worker in role.on}
        self._followed = {role.follows for role in roles}
        self._objects: dict[str, Role] = {}
        self._homes: dict[str, dict[int, torch.device]] = {}
        #: Forms that the tensors of roles had last, with buffers or without, the newest first.
        self._forms: dict[tuple[str, bool], list[HeldForms]] = {}

    def setup(self) -> None:
        """Make the objects; a role that follows one in this process begins with its weights.

        Raises:
            FlowError: A role has tensors that cannot move to the roles that follow it, or from the one that it follows.
        """
        for name, role in self._roles.items():
            self._objects[name] = one = role.role()
            one.setup(self._mesh(role))
            if not role.frozen:
                check_weights(name, one)
        for role in self._roles.values():
            followed = role.follows
            if followed is not None and followed in self and self._are_whole(role, followed):
                self.copy(self.state(followed), role, followed)
                warn_of_rest(followed, role, self.state(followed), self.state(role))
            if self._worker is not None and (followed is not None or role in self._followed):
                check_tensors(role, self.state(role), written=followed is not None)
        wait_for_devices()  # the weights may be shown next

    def agree(self, role: Placement | None, is_well: bool) -> bool:
        """Return whether it is well on all workers of a role, before they enter a function together.

        Args:
            role: Role of the function; None for functions without one.
            is_well: Whether it is well here.

        Raises:
            RuntimeError: a worker of the role has ended.
        """
        if role is None or self._groups is None or len(role.on) == 1:
            return is_well
        return self._groups.agree(role, is_well)

    def _mesh(self, role: Placement) -> Mesh:
        dims = dict(role.layout.dims)
        if self._worker is None:
            return Mesh(role.pool or role.name, role.layout, dict.fromkeys(dims, 1), dict.fromkeys(dims, 0))
        mesh = self._groups.mesh(role) if self._groups is not None else None
        ranks = role.layout.coordinates(role.on.index(self._worker))
        groups = self._groups.ranks(role) if self._groups is not None else {}
        return Mesh(role.pool or role.name, role.layout, dims, ranks, mesh, groups)

    @property
    def has_all(self) -> bool:
        """Whether the objects of all roles are in this process."""
        return self._worker is None

    def is_head(self, role: Placement) -> bool:
        """Return whether this process reports for its data-parallel rank of a role."""
        return self._worker is None or self._worker in heads_of(role)

    def close(self) -> None:
        """Drop the objects; those with a method `close` are closed."""
        objects, self._objects = self._objects, {}
        self._forms.clear()
        for one in objects.values():
            close = getattr(one, "close", None)
            if callable(close):
                close()

    def __getitem__(self, role: Placement) -> Any:
        """Return the object of a role, with its tensors where they belong."""
        homes = self._homes.pop(role.name, None)
        if homes:
            for number, tensor in enumerate(_all_tensors(self._objects[role.name])):
                if number in homes:
                    tensor.data = tensor.data.to(homes[number])
        return self._objects[role.name]

    def __contains__(self, role: Placement) -> bool:
        return role.name in self._roles

    @property
    def roles(self) -> list[Placement]:
        """All roles that are in this process."""
        return list(self._roles.values())

    def run(self, hook: Hook, owner: Placement | None, step: int) -> dict[str, float]:
        """Run a hook on roles that are all in this process; returns the numbers of an evaluation.

        Args:
            hook: what to do.
            owner: role of the function; None for hooks that were posted by hand, and functions without a role.
            step: number of the step, from 1.

        Raises:
            FlowError: the tensors of two roles do not fit.
            OSError: a checkpoint cannot be written.
        """
        roles = hook.roles or ((owner,) if owner is not None else ())
        match hook:
            case Offload():
                self._offload(roles[0])
            case Publish() | ParamRealloc():
                for source, target in transfers(hook, owner):
                    self.receive(hook, self.state(source), source, target)
            case Evaluate():
                return numbers_of(f"{roles[0].name}.evaluate", self[roles[0]].evaluate())
            case Save():
                role = roles[0]
                checkpoints.save(role.name, self[role], hook.folder, step, self._group(role))
            case Load():
                return {"step": float(self.load(roles[0], hook.folder))}
            case SaveState():
                save_state(hook, self.__getitem__, has_process=self._worker is not None)
            case LoadState():
                load_state(hook, self.__getitem__, has_process=self._worker is not None)
            case UserHook():
                hook.function(*(self[role] for role in roles))
        return {}

    def state(self, role: Placement) -> dict[str, Tensor]:
        """Return the parameters and buffers of a role by name; they are the role's own."""
        return tensors_of(self[role])

    def held(self, role: Placement, *, buffers: bool = True) -> Held:
        """Return what this worker holds of the parameters, and buffers, of a role by name.

        Raises:
            FlowError: a DTensor has a placement that weights cannot move to or from.
        """
        assert self._worker is not None
        one = self[role]
        reshard(one.modules().values())
        known = self._forms.setdefault((role.name, buffers), [])
        held = held_tensors(role, self._worker, tensors_of(one, buffers=buffers), known=known)
        # Tensors that were moved to another device, and back, have two.
        known[:] = [held.forms, *(forms for forms in known if forms is not held.forms)][:2]
        return held

    def receive(self, hook: Hook, state: Mapping[str, Tensor], source: Placement, target: Placement) -> None:
        """Do the target's part of a hook that brings weights of another role.

        Args:
            hook: A `Publish` or a `ParamRealloc`.
            state: Tensors of the source, by name.
            source: Role that the state is of.
            target: Role of this process that gets the weights.

        Raises:
            FlowError: the tensors do not fit.
        """
        if isinstance(hook, ParamRealloc):
            with torch.no_grad():
                for mine, theirs in self._pairs(state, source, target, buffers=False):
                    mine.lerp_(theirs.to(mine), hook.eta)
        else:
            self.copy(state, target, source)

    def copy(self, state: Mapping[str, Tensor], target: Placement, source: Placement) -> None:
        """Copy weights to a role.

        Raises:
            FlowError: the tensors do not fit.
        """
        with torch.no_grad():
            for mine, theirs in self._pairs(state, source, target, buffers=True):
                mine.copy_(theirs)

    def load(self, role: Placement, folder: Path) -> int:
        """Load what the hook `save` has written last; returns the number of its step, from 1.

        Raises:
            ConfigError: there is no checkpoint.
        """
        return checkpoints.load(role.pool or role.name, self[role], folder, self._group(role))

    def _are_whole(self, role: Placement, other: Placement) -> bool:
        """Whether all of two roles is here; else a hook brings the first weights of one to the other."""
        return self._worker is None or role.on == other.on == (self._worker,)

    def _group(self, role: Placement) -> Any:
        group = self._groups.group(role) if self._groups is not None else None
        if group is None and self._worker is not None and len(role.on) > 1:
            raise FlowError(
                f"role {role.name!r} is on workers {list(role.on)}, which have no process group: all of them would write "
                "one checkpoint; have them on one host"
            )
        return group

    def _offload(self, role: Placement) -> None:
        homes = {}
        for number, tensor in enumerate(_all_tensors(self._objects[role.name])):
            if tensor.device.type != "cpu":
                homes[number] = tensor.device
                tensor.data = tensor.data.to("cpu")
        self._homes[role.name] = self._homes.get(role.name, {}) | homes

    def _pairs(
        self, theirs: Mapping[str, Tensor], source: Placement, target: Placement, *, buffers: bool
    ) -> list[tuple[Tensor, Tensor]]:
        mine = tensors_of(self[target], buffers=buffers)
        missing = sorted(set(mine) - set(theirs))
        if not mine or missing:
            what = (
                f"lacks {', '.join(missing[:4])}"
                if mine
                else f"is copied to role {target.name!r}, which has no modules"
            )
            raise FlowError(f"weights of role {source.name!r}: it {what}")
        for name, tensor in mine.items():
            if tensor.shape != theirs[name].shape:
                raise FlowError(
                    f"weights of role {source.name!r}: {name} has shape {tuple(theirs[name].shape)}, "
                    f"role {target.name!r} has {tuple(tensor.shape)}"
                )
            if not torch.can_cast(theirs[name].dtype, tensor.dtype):
                raise FlowError(
                    f"weights of role {source.name!r}: {name} is {theirs[name].dtype}, role {target.name!r} has "
                    f"{tensor.dtype}, which has no such values"
                )
        twins = twins_of(mine)
        return [(tensor, theirs[name]) for name, tensor in mine.items() if name not in twins]


def tensors_of(role: Role, *, buffers: bool = True) -> dict[str, Tensor]:
    """Return parameters, and buffers, of all modules of an object by name."""
    found: dict[str, Tensor] = {}
    for prefix, module in role.modules().items():
        found |= {f"{prefix}.{name}": tensor for name, tensor in module.named_parameters()}
        if buffers:
            found |= {f"{prefix}.{name}": tensor for name, tensor in module.named_buffers()}
    return found


def _all_tensors(role: Role) -> Iterator[Tensor]:
    """Yield parameters, buffers, gradients, and the state of optimizers, always in one order."""
    for tensor in tensors_of(role).values():
        yield tensor
        if tensor.grad is not None:
            yield tensor.grad
    for optimizer in role.optimizers().values():
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def numbers_of(name: str, result: object) -> dict[str, float]:
    """Return what a function has returned as numbers.

    Raises:
        FlowError: it is no dict of numbers, there are too many, or a name is too long.
    """
    if result is None:
        return {}
    if not isinstance(result, dict):
        raise FlowError(f"{name} returned a {type(result).__name__}; need a dict")
    numbers = {}
    for key, value in result.items():
        what = f"{key!r}, which {name} returned and is no declared output,"
        numbers[checked_name(f"{name} returned a number; its name", str(key))] = plain_number(what, value)
    if len(numbers) > _MOST_NUMBERS:
        raise FlowError(f"{name} returned {len(numbers)} numbers; need at most {_MOST_NUMBERS}")
    return numbers
