"""All that a flow declares, numbered: each process that builds it from the same function has the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import ConfigError
from ...records import clip
from .calls import MFCDef
from .datasets import Dataset
from .hooks import Evaluate, Hook, Load, Offload, ParamRealloc, Publish, Save, UserHook, transfers
from .roles import Placement
from .transfer import DataTransfer

__all__ = ["Declaration", "restartable"]


@dataclass(frozen=True, eq=False)
class Declaration:
    """Functions, roles and hooks of a flow.

    Args:
        calls: the functions, as they were declared.
        group: rows that stay together.
        digests: whether each call gets a digest of its inputs.
        datasets: sources that workers read, by partition; messages name them by their numbers here.

    Attributes:
        roles: all roles, by the number that messages name them by.
        hooks: all hooks, likewise.

    Raises:
        ConfigError: a role that follows another one would never get its weights, or two roles have one name.
    """

    calls: tuple[MFCDef, ...]
    group: int = 1
    digests: bool = False
    datasets: Mapping[str, Dataset] = field(default_factory=dict)
    roles: tuple[Placement, ...] = field(init=False)
    hooks: tuple[Hook, ...] = field(init=False)

    def __post_init__(self) -> None:
        roles: dict[Placement, None] = {}
        hooks: list[Hook] = []
        for one in self.calls:
            if one.model_name is not None:
                roles.update(dict.fromkeys(one.model_name.replicas or (one.model_name,)))
            for hook in (*one.pre_hooks, *one.post_hooks):
                roles.update(dict.fromkeys(hook.roles))
                hooks.append(hook)
        roles.update(dict.fromkeys(one.role for one in self.datasets.values()))
        for role in list(roles):
            if role.follows is not None:
                roles[role.follows] = None
        object.__setattr__(self, "roles", tuple(roles))
        object.__setattr__(self, "hooks", tuple(hooks))
        _check_pools(self)
        names = [role.name for role in roles] + list({role.pool: None for role in roles if role.pool})
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"several roles are named {', '.join(twice)}; give `place(..., name=)`")
        _check_publishing(self)

    @property
    def workers(self) -> tuple[int, ...]:
        """Numbers of all workers, sorted."""
        return tuple(sorted({worker for role in self.roles for worker in role.on}))

    def lines(self) -> list[str]:
        """Return the declaration as text; two processes with the same text number everything in the same way."""
        said = [f"rows stay together in groups of {self.group}; digests: {self.digests}"]
        for role in self.roles:
            follows = f", follows {role.follows.name}" if role.follows is not None else ""
            frozen = ", frozen" if role.frozen else ""
            said.append(
                f"role {role.name}: {_name_of(role.role)}, {role.layout} on {list(role.on)}{follows}{frozen}"
            )
        for one in self.calls:
            owner = one.model_name.name if one.model_name is not None else "no role"
            impl = one.interface_impl if isinstance(one.interface_impl, str) else _name_of(one.interface_impl)
            said.append(
                f"function {one.name} ({owner}, {impl}, {one.interface_type.value}): "
                f"{_columns(one.input_keys, dict(one.input_key_remap))} -> "
                f"{_columns(one.output_keys, {v: k for k, v in one.output_key_remap.items()})}, "
                f"rows={one.n_seqs}, at_least={one.least}, reuse={one.reuse}, uneven={one.uneven}, "
                f"partition={one.partition}, {len(one.pre_hooks)} hooks before, {len(one.post_hooks)} after"
            )
        said += [f"source of {name}: {one.line()}" for name, one in self.datasets.items()]
        said += [f"hook {number}: {_hook(hook)}" for number, hook in enumerate(self.hooks)]
        return [clip(one, 1 << 14) for one in said]

    def first_publishing(self) -> list[Publish]:
        """Return the hooks by which roles begin with the weights of roles that are on other workers, or on several."""
        following: dict[Placement, list[Placement]] = {}
        for role in self.roles:
            if role.follows is not None and (role.follows.on != role.on or len(role.on) > 1):
                following.setdefault(role.follows, []).append(role)
        return [Publish(tuple(roles)) for roles in following.values()]

    def check_processes(self) -> None:
        """Check that each worker can be a process of its own.

        Raises:
            ConfigError: a hook needs the objects of roles that are on different workers, or there is no role at all.
        """
        if not self.roles:
            raise ConfigError("the flow has no roles, so there is nothing that worker processes could do")
        for one in self.calls:
            for hook in (*one.pre_hooks, *one.post_hooks):
                self.check_hook(hook, one.model_name)

    def check_hook(self, hook: Hook, owner: Placement | None) -> None:
        """Check that a hook can run where each worker is a process.

        Raises:
            ConfigError: it is a function that the flow has not declared, or needs the objects of roles that are on
                different workers.
        """
        if isinstance(hook, UserHook) and hook not in self.hooks:
            raise ConfigError(
                f"hook {hook.name} is a function that no call of the flow has: worker processes do not have it"
            )
        roles = hook.roles or ((owner,) if owner is not None else ())
        if isinstance(hook, UserHook) and len({frozenset(role.on) for role in roles}) > 1:
            where = ", ".join(f"{role.name} on {list(role.on)}" for role in roles)
            raise ConfigError(
                f"hook {hook.name} gets the objects of roles on different workers: {where}; in several processes it is "
                "called on each worker, with the objects there; place the roles together"
            )


def _name_of(what: object) -> str:
    return f"{getattr(what, '__module__', '?')}.{getattr(what, '__qualname__', type(what).__name__)}"


def _columns(names: Sequence[str], inside: dict[str, str]) -> str:
    return ", ".join(f"{inside[name]} for {name}" if name in inside else name for name in names)


def _hook(hook: Hook) -> str:
    text = f"{type(hook).__name__}({', '.join(role.name for role in hook.roles)}), every={hook.every}"
    match hook:
        case ParamRealloc():
            text += f", eta={hook.eta!r}"
        case Save() | Load():
            text += f", folder={str(hook.folder)!r}"
        case DataTransfer():
            text += f", columns={', '.join(hook.columns) or 'default'}"
        case UserHook():
            text += f", {_name_of(hook.function)}"
        case Offload() | Publish() | Evaluate():
            pass
    return text


def _check_pools(declaration: Declaration) -> None:
    for role in declaration.roles:
        if role.replicas:
            raise ConfigError(
                f"pool {role.name!r} is named by a hook or a dataset, which need a role on fixed workers; only `publish` "
                "takes a pool"
            )


def _check_publishing(declaration: Declaration) -> None:
    """A role that follows another one must get its weights, or its rows would grow older than their bound."""
    trained = {one.model_name for one in declaration.calls if one.trains}
    reached: set[Placement] = set()
    for one in declaration.calls:
        for hook in one.post_hooks:
            if isinstance(hook, Publish):
                reached |= set(hook.roles)
            elif isinstance(hook, ParamRealloc) and hook.every == 1:
                reached.add(hook.roles[1])
    for role in declaration.roles:
        if role.follows is not None and role.follows in trained and role not in reached:
            raise ConfigError(
                f"role {role.name!r} follows {role.follows.name!r}, and no call publishes to it; "
                f"add after=[publish({role.name})] to the training call"
            )


def restartable(declaration: Declaration) -> frozenset[int]:
    """Return the workers of which all roles are as before after `setup`, a load, and the weights of roles that they follow.

    A role is not if a function trains it, if weights are mixed into it, if it is on several workers, which are connected,
    or if a hook brings weights from it to another worker, which would have waited for a process that has gone.

    Args:
        declaration: Declaration of the flow.
    """
    kept: set[Placement] = {
        one.model_name for one in declaration.calls if one.trains and one.model_name is not None
    }
    kept |= {role for role in declaration.roles if len(role.on) > 1}
    for one in declaration.calls:
        for hook in (*one.pre_hooks, *one.post_hooks):
            for source, target in transfers(hook, one.model_name):
                if isinstance(hook, ParamRealloc) and (hook.eta != 1 or target.follows is not source):
                    kept.add(target)
                if source.on != target.on:
                    kept.add(source)
    return frozenset(declaration.workers) - {worker for role in kept for worker in role.on}
