"""Which roles' weights a common save holds, and the hooks by which workers save and load.

A role that gets its weights from another one, and from nothing else, gets them again by `publish`.
"""

from __future__ import annotations

from pathlib import Path

from ..declare.declaration import Declaration
from ..declare.hooks import Hook, Load, LoadState, ParamRealloc, Publish, Save, SaveState, UserHook
from ..declare.roles import Placement

__all__ = ["kept_roles", "load_hooks", "publishing", "save_hooks"]


def kept_roles(declaration: Declaration) -> list[Placement]:
    """Return the roles of which a save has the weights, in the order of the declaration.

    Those are all but roles that are frozen, and roles that follow another one and have its weights at the end of each
    step for sure. User hooks may change any role that they get, so such roles count as ones with weights of their own;
    replicas of a pool do not, which are equal.
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
        if not role.pool and (role in touched or not (role.frozen or _is_copy(declaration, role, touched)))
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


def save_hooks(declaration: Declaration, folder: Path) -> list[tuple[frozenset[int], Hook]]:
    """Return the hooks that save all roles into a folder, with their workers.

    Modules and optimizers by role, as `save` does; the rest by worker.
    """
    weights = [
        (frozenset(role.on), Save((role,), folder=folder / "weights")) for role in kept_roles(declaration)
    ]
    return [*weights, *((frozenset((one,)), SaveState(*at)) for one, at in _by_worker(declaration, folder))]


def load_hooks(declaration: Declaration, folder: Path) -> list[tuple[frozenset[int], Hook]]:
    """Return the hooks that load what `save_hooks` has saved."""
    weights = [
        (frozenset(role.on), Load((role,), folder=folder / "weights")) for role in kept_roles(declaration)
    ]
    # A replica of a pool may have been away when the others saved: it begins as after `setup`.
    states = [
        (frozenset((one,)), LoadState(*at))
        for one, at in _by_worker(declaration, folder)
        if at[2].exists() or not all(role.pool for role in at[0])
    ]
    return [*weights, *states]


def _by_worker(
    declaration: Declaration, folder: Path
) -> list[tuple[int, tuple[tuple[Placement, ...], int, Path]]]:
    found = []
    for worker in declaration.workers:
        roles = tuple(role for role in declaration.roles if worker in role.on)
        found.append((worker, (roles, 1, folder / f"worker-{worker}")))
    return found


def publishing(declaration: Declaration) -> list[Publish]:
    """Return the hooks that bring weights to roles of which a save has none."""
    kept = kept_roles(declaration)
    following: dict[Placement, list[Placement]] = {}
    for role in declaration.roles:
        if role.follows is not None and role not in kept:
            following.setdefault(role.follows, []).append(role)
    return [Publish(tuple(roles)) for roles in following.values()]
