"""Parts of messages: hooks that the flow has not declared, and what of a call a worker has."""

from __future__ import annotations

from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, most, span
from ..master.rows.records import Name
from .columns import MOST_COLUMNS, MOST_ROWS

__all__ = ["HookForm", "Slice", "Text"]

#: A reason, or what went wrong.
Text = Annotated[str, most(1 << 17)]

_Rows = Annotated[int, span(1, MOST_ROWS)]
_Numbers = Annotated[tuple[Count, ...], most(MOST_ROWS)]


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
