"""Workers that can be started again, because nothing of their roles is lost with a process."""

from __future__ import annotations

from .declaration import Declaration
from .hooks import ParamRealloc, transfers
from .roles import Placement

__all__ = ["restartable"]


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
