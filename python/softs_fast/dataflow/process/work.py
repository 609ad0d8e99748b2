"""What a step consists of, for the one that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..declare.hooks import Hook
from ..declare.roles import Placement
from ..link.forms import Slice
from ..master.rows.records import Tag

__all__ = ["HookWork", "MainWork", "MoveWork", "Work", "name_of"]


@dataclass(frozen=True)
class MainWork:
    """A function and its rows.

    Attributes:
        function: Name of the function.
        ids: Ids of the rows.
        columns: Places of the values of each input, as many as ids; the backend decides what a place is.
        tags: Tags of each row.
        step: Step of the rows; see `Rows`, also for `use`, `ends_step` and `age`.
        part: Part of the call that is for this worker; None: the rows are those of the whole call.
    """

    function: str
    ids: tuple[int, ...]
    columns: dict[str, list[Any]]
    tags: list[dict[str, Tag]]
    step: int
    use: int
    ends_step: bool
    age: int
    part: Slice | None = None


@dataclass(frozen=True)
class HookWork:
    """A hook.

    Attributes:
        hook: Hook that is run.
        owner: Role of the hook's function; None for functions without a role, and hooks that were posted.
        step: Number of the step, from 1; 0 if the hook was posted.
    """

    hook: Hook
    owner: Placement | None
    step: int


@dataclass(frozen=True)
class MoveWork:
    """Rows that are brought to the node of a worker.

    Attributes:
        ids: Ids of the rows.
        columns: Places of the values by column, as many as ids; the backend decides what a place is.
    """

    ids: tuple[int, ...]
    columns: dict[str, list[Any]]


Work = MainWork | HookWork | MoveWork


def name_of(work: Work) -> str:
    """Return the name of a function or hook."""
    if isinstance(work, MainWork):
        return work.function
    return work.hook.name if isinstance(work, HookWork) else "data_transfer"
