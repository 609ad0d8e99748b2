"""What a worker is told to do: a function on rows, a hook, or rows that it brings to its node."""

from __future__ import annotations

from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, most, span
from ..master.rows.records import Name, Tags
from .columns import MOST_COLUMNS, MOST_ROWS, Columns

__all__ = ["HookForm", "HookTask", "MainTask", "MoveTask", "Slice", "Task"]

_Rows = Annotated[int, span(1, MOST_ROWS)]
_Numbers = Annotated[tuple[Count, ...], most(MOST_ROWS)]
_Number = Annotated[int, span(-1, 1 << 16)]


class HookForm(Message):
    """A hook that the flow has not declared, because a caller has posted it; never a function of the user's.

    Attributes:
        kind: Name of the hook's class.
        roles: Numbers of the hook's roles.
        eta: Share of the source in a mix of weights.
        folder: Folder of a checkpoint, or path of a file of rows.
        column: See `LoadRows`, like the next two.
    """

    kind: Annotated[str, most(32)]
    roles: Annotated[tuple[Annotated[int, span(0, MOST_ROWS)], ...], most(64)]
    eta: float
    folder: Annotated[str, most(1 << 12)]
    column: Name
    pieces: _Numbers
    groups: _Numbers


class Slice(Message):
    """What one worker of several has of the rows of a call.

    Attributes:
        n_real: Number of rows, the first of the order, that are data here; the rest belongs to another rank, and is
            there because each rank enters the function, also without data.
        n_rows: Number of rows that the function gets; those behind the rows of the order repeat them.
        n_all: Number of rows of the call that are data, on all ranks together.
        n_ranks: Number of data-parallel ranks.
        is_head: Whether this worker reports what the function returns.
        longest: Largest length of a value of each input in the whole call, on all ranks.
    """

    n_real: Annotated[int, span(0, MOST_ROWS)]
    n_rows: _Rows
    n_all: _Rows
    n_ranks: _Rows
    is_head: bool
    longest: Annotated[tuple[Count, ...], most(MOST_COLUMNS)]

    def __post_init__(self) -> None:
        if self.n_real > self.n_all:
            raise WireError(f"{self.n_real} rows of a call are data here, {self.n_all} in all of it")


class _Task(Message):
    """To a worker: run its part of a step when all tickets before it have ended there.

    Attributes:
        ticket: Place in the order.
        call: Number of the call.
    """

    ticket: Count
    call: Count


class MainTask(_Task, tag=1):
    """To a worker: run a function on rows.

    Attributes:
        function: Name of the function.
        ids: Ids of the rows.
        columns: Places of the values of each input, as many as ids.
        tags: Tags of each row.
        step: Step of the rows; see `Rows`, also for `use`, `ends_step` and `age`.
        part: Part of the call that is for this worker, if the role has several workers; None: the rows are those of the
            whole call.
    """

    function: Name
    ids: _Numbers
    columns: Columns
    tags: Annotated[tuple[Tags, ...], most(MOST_ROWS)]
    step: Count
    use: Count
    ends_step: bool
    age: Count
    part: Slice | None = None

    @property
    def own_ids(self) -> tuple[int, ...]:
        """Ids of the rows that are data here."""
        return self.ids if self.part is None else self.ids[: self.part.n_real]

    def __post_init__(self) -> None:
        check_rows(self, self.ids, self.columns)
        n, part = len(self.ids), self.part
        if part is not None and (part.n_real not in (0, n) or part.n_rows < n):
            raise WireError(f"a MainTask has {n} ids, of which {part.n_real} are data in {part.n_rows} rows")
        if part is not None and len(part.longest) != len(self.columns):
            raise WireError(
                f"a MainTask has {len(self.columns)} columns and the longest values of {len(part.longest)}"
            )
        if len(self.tags) != n:
            raise WireError(f"a MainTask has {n} ids and tags of {len(self.tags)}")


class HookTask(_Task, tag=2):
    """To a worker: run its part of a hook.

    Attributes:
        hook: Number of the hook in the declaration; -1: see `form`.
        form: Form of the hook, if it was posted.
        owner: Number of the role of the function; -1: no role.
        step: Number of the step, from 1; 0 if the hook was posted.
    """

    hook: _Number
    form: HookForm | None
    owner: _Number
    step: Count


class MoveTask(_Task, tag=12):
    """To a worker: bring rows to its node.

    Attributes:
        ids: Ids of the rows.
        columns: Places of the values of each column, as many as ids.
    """

    ids: _Numbers
    columns: Columns

    def __post_init__(self) -> None:
        check_rows(self, self.ids, self.columns)


Task = MainTask | HookTask | MoveTask


def check_rows(made: Message, ids: tuple[int, ...], columns: Columns) -> None:
    """Check that columns have as many values as there are ids.

    Raises:
        WireError: one has not.
    """
    wrong = [n for n in columns.lengths() if n != len(ids)]
    if wrong:
        raise WireError(f"a {type(made).__name__} has {len(ids)} ids and a column of {wrong[0]} values")
