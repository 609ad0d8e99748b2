"""What a step consists of, for the one that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..rows.records import Tag

__all__ = ["HookWork", "MainWork", "Work"]


@dataclass(frozen=True)
class MainWork:
    """A function and its rows.

    Attributes:
        function: its name.
        ids: of the rows.
        columns: for each input the places of its values, as many as ids; what a place is, the backend decides.
        tags: of each row.
        step: as in `Rows`, like the rest.
    """

    function: str
    ids: tuple[int, ...]
    columns: dict[str, list[Any]]
    tags: list[dict[str, Tag]]
    step: int
    use: int
    ends_step: bool
    age: int


@dataclass(frozen=True)
class HookWork:
    """A hook.

    Attributes:
        hook: what is done.
        owner: role of its function; None for functions without a role, and hooks that were posted.
        step: number of the step, from 1; 0 if it was posted.
    """

    hook: Hook
    owner: Placement | None
    step: int


Work = MainWork | HookWork
