"""Of which step the weights of each role are the result. No tensor: it follows from what workers report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..declare.calls import MFCDef
from ..declare.declaration import Declaration
from ..declare.roles import Placement

__all__ = ["Versions"]


class Versions:
    """Steps of the weights of roles that train, and of those that follow them, on each of their workers.

    Reports of one worker arrive in the order of its steps, so what is counted here for a worker when its report arrives
    is what was true there when its step ended. Workers of one role are not at the same step at one time.

    Args:
        declaration: Declaration of the flow.
    """

    def __init__(self, declaration: Declaration) -> None:
        trained = [one.model_name for one in declaration.calls if one.trains]
        following = [role for role in declaration.roles if role.follows is not None]
        roles = [role for role in (*trained, *following) if role is not None]
        self._steps = {(role.name, worker): 0 for role in roles for worker in role.on}
        replicas = [role for role in following if role.pool]
        self._pools = [
            [role.name for role in replicas if role.pool == pool]
            for pool in dict.fromkeys(role.pool for role in replicas)
        ]
        self._calls = [one for one in declaration.calls if one.trains]
        self._through: dict[tuple[str, int], int] = {}
        # By ticket and source of a hook, the version that its targets get.
        self._shown: dict[int, dict[str, int]] = {}

    def of(self, role: Placement, worker: int) -> int | None:
        """Return the version of a role at a worker; None if its weights are not those of a training function."""
        return self._steps.get((role.name, worker))

    def trained(self, call: MFCDef, step: int, worker: int) -> None:
        """A worker has done its part of a step, from 0; a role is as far as the last of its functions."""
        if call.model_name is None:
            return
        self._through[call.name, worker] = step + 1
        same = [one for one in self._calls if one.model_name is call.model_name]
        self._steps[call.model_name.name, worker] = min(
            self._through.get((one.name, worker), 0) for one in same
        )

    def moved(self, ticket: int, pairs: Iterable[tuple[Placement, Placement]], worker: int) -> None:
        """A worker has ended its part in a hook that brings weights from a source to a target.

        It is the version that the source had when the first of its workers had ended its part: none of them goes on to the
        next step before its own part has ended. Rows of several workers have the oldest of their versions.

        Args:
            ticket: Ticket of the hook.
            pairs: Pairs of source and target.
            worker: Worker that has ended its part.
        """
        for source, target in pairs:
            shown = self._shown.setdefault(ticket, {})
            if worker in source.on:
                shown.setdefault(source.name, self._steps.get((source.name, worker), 0))
            if worker in target.on and target.follows is source:
                # Before a worker of the source has ended its part, none has gone on, and one that shows has trained.
                newest = max(self._steps.get((source.name, one), 0) for one in source.on)
                self._steps[target.name, worker] = shown.get(source.name, newest)

    def ended(self, ticket: int) -> None:
        """All parts of a step have ended."""
        self._shown.pop(ticket, None)

    def saved(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return versions by role, and what each training function has done; between two steps all workers are as far."""
        versions: dict[str, int] = {}
        through = dict.fromkeys((one.name for one in self._calls), 0)
        for (role, _), version in self._steps.items():
            versions[role] = min(version, versions.get(role, version))
        for pool in self._pools:  # a replica that is away gets the weights that the others have
            versions |= dict.fromkeys(pool, max(versions[role] for role in pool))
        for (function, _), step in self._through.items():
            through[function] = step
        return versions, through

    def restore(self, versions: Mapping[str, int], through: Mapping[str, int]) -> None:
        """Go on from what `saved` returned."""
        for role, worker in self._steps:
            self._steps[role, worker] = versions[role]
        for one in self._calls:
            for worker in one.model_name.on if one.model_name is not None else ():
                self._through[one.name, worker] = through[one.name]
