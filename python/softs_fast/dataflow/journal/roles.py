"""Which roles' weights a common save holds, and the hooks by which workers save and load.

A role that gets its weights from another one, and from nothing else, gets them again by `publish`.
"""

from __future__ import annotations

from pathlib import Path

from ..declare.declaration import Declaration
from ..declare.hooks import Hook, LoadState, ParamRealloc, Publish, SaveState, UserHook
from ..declare.roles import Placement

__all__ = ["kept_roles", "load_hooks", "publishing", "save_hooks", "state_hook"]


def kept_roles(declaration: Declaration) -> list[Placement]:
    """Return the roles of which a save has the weights, in the order of the declaration.

    Those are all but roles that are frozen, and roles that follow another one and have its weights at the end of each
    step for sure. User hooks may change any role that they get, so such roles count as ones with weights of their own.
    """
    touched: set[Placement] = set()
    for one in declaration.calls:
        for hook in (*one.pre_hooks, *one.post_hooks):
            if isinstance(hook, UserHook):
                owner = (one.model_name,) if one.model_name is not None else ()
                touched |= set(hook.roles or owner)
            elif isinstance(hook, ParamRealloc):
                touched.add(hook.roles[1])
    return [
        role
        for role in declaration.roles
        if role in touched or not (role.frozen or _is_copy(declaration, role, touched))
    ]


def _is_copy(declaration: Declaration, role: Placement, touched: set[Placement]) -> bool:
    source = role.follows
    if source is None or source in touched:
        return False
    changing = [one for one in declaration.calls if one.trains and one.model_name is source]
    return all(
        any(isinstance(hook, Publish) and hook.every == 1 and role in hook.roles for hook in one.post_hooks)
        for one in changing
    )


def save_hooks(declaration: Declaration, folder: Path) -> list[tuple[int, SaveState]]:
    """Return for each worker the hook that saves the state of its roles."""
    kept = kept_roles(declaration)
    hooks = []
    for worker in declaration.workers:
        roles = tuple(role for role in declaration.roles if worker in role.on)
        # Of a role on several workers, the first one has the weights of all.
        own = tuple(role for role in roles if role in kept and role.on[0] == worker)
        hooks.append((worker, SaveState(roles, folder=folder / f"worker-{worker}", weights=own)))
    return hooks


def load_hooks(declaration: Declaration, folder: Path) -> list[tuple[int, LoadState]]:
    """Return for each worker the hook that loads what `save_hooks` has saved."""
    kept = kept_roles(declaration)
    hooks = []
    for worker in declaration.workers:
        roles = tuple(role for role in declaration.roles if worker in role.on)
        own = tuple(role for role in roles if role in kept)
        hooks.append((worker, LoadState(roles, folder=folder / f"worker-{worker}", weights=own)))
    return hooks


def state_hook(declaration: Declaration, kind: type[Hook], folder: Path) -> SaveState | LoadState | None:
    """Return the hook of a worker by its folder, whose name has the number of the worker; None if there is none."""
    hooks = (save_hooks if kind is SaveState else load_hooks)(declaration, folder.parent)
    return next((hook for _, hook in hooks if hook.folder == folder), None)


def publishing(declaration: Declaration) -> list[Publish]:
    """Return the hooks that bring weights to roles of which a save has none."""
    kept = kept_roles(declaration)
    following: dict[Placement, list[Placement]] = {}
    for role in declaration.roles:
        if role.follows is not None and role not in kept:
            following.setdefault(role.follows, []).append(role)
    return [Publish(tuple(roles)) for roles in following.values()]
