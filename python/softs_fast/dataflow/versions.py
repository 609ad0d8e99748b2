"""Of which step the weights of each role are the result. No tensor: it follows from what workers report."""

from __future__ import annotations

from collections.abc import Iterable

from .declare.calls import MFCDef
from .declare.declaration import Declaration
from .declare.roles import Placement

__all__ = ["Versions"]


class Versions:
    """Steps of the weights of roles that train, and of those that follow them.

    Reports of one worker arrive in the order of its steps, so what is counted here when a report arrives is what was
    true when its step ended.

    Args:
        declaration: of the flow.
    """

    def __init__(self, declaration: Declaration) -> None:
        trained = [one.model_name for one in declaration.calls if one.trains]
        following = [role for role in declaration.roles if role.follows is not None]
        self._steps = {role.name: 0 for role in (*trained, *following) if role is not None}
        self._calls = [one for one in declaration.calls if one.trains]
        self._through = {one.name: 0 for one in self._calls}
        # By ticket and source of a hook, the version that its targets get.
        self._shown: dict[int, dict[str, int]] = {}
        # By ticket and target, the workers that have it.
        self._have: dict[int, dict[str, set[int]]] = {}

    def of(self, role: Placement) -> int | None:
        """Return the version of a role; None if its weights are not those of a training function."""
        return self._steps.get(role.name)

    def trained(self, call: MFCDef, step: int) -> None:
        """A function has done its part of a step, from 0; a role is as far as the last of its functions."""
        if call.model_name is None:
            return
        # Another worker of the role may have reported a later step before.
        self._through[call.name] = max(self._through[call.name], step + 1)
        same = [self._through[one.name] for one in self._calls if one.model_name is call.model_name]
        self._steps[call.model_name.name] = min(same)

    def moved(self, ticket: int, pairs: Iterable[tuple[Placement, Placement]], worker: int) -> None:
        """A worker has ended its part in a hook that brings weights from a source to a target.

        A target has a version when all of its workers have it. It is the one that the source had when the first of its
        workers had ended its part: none of them goes on to the next step before its own part has ended.

        Args:
            ticket: of the hook.
            pairs: sources and targets.
            worker: which part has ended.
        """
        for source, target in pairs:
            shown = self._shown.setdefault(ticket, {})
            if worker in source.on:
                shown.setdefault(source.name, self._steps.get(source.name, 0))
            if worker not in target.on or target.follows is not source:
                continue
            have = self._have.setdefault(ticket, {}).setdefault(target.name, set())
            have.add(worker)
            if have.issuperset(target.on):
                self._steps[target.name] = shown.get(source.name, self._steps.get(source.name, 0))

    def ended(self, ticket: int) -> None:
        """All parts of a step have ended."""
        self._shown.pop(ticket, None)
        self._have.pop(ticket, None)
