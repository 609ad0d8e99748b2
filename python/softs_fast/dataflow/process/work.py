"""What a step consists of, for the worker that runs it."""

from __future__ import annotations

from dataclasses import dataclass

from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..link.tasks import MainTask, MoveTask

__all__ = ["HookWork", "Work", "name_of"]


@dataclass(frozen=True)
class HookWork:
    """A hook; messages have it as a `HookTask`.

    Attributes:
        hook: Hook that is run.
        owner: Role of the hook's function; None for functions without a role, and hooks that were posted.
        step: Number of the step, from 1; 0 if the hook was posted.
    """

    hook: Hook
    owner: Placement | None
    step: int


Work = MainTask | HookWork | MoveTask


def name_of(work: Work) -> str:
    """Return the name of a function or hook."""
    if isinstance(work, MainTask):
        return work.function
    return work.hook.name if isinstance(work, HookWork) else "data_transfer"
