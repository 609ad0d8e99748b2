"""Parts of messages: hooks that the flow has not declared, and what of a call a worker has."""

from __future__ import annotations

from typing import Annotated

from ...errors import WireError
from ...records import Count, Message, most, span
from ..rows.records import Name
from .columns import MOST_COLUMNS, MOST_ROWS

__all__ = ["HookForm", "Slice", "Text"]

#: A reason, or what went wrong.
Text = Annotated[str, most(1 << 17)]

_Rows = Annotated[int, span(1, MOST_ROWS)]
_Numbers = Annotated[tuple[Count, ...], most(MOST_ROWS)]


class HookForm(Message):
    """A hook that the flow has not declared, because a caller has posted it; never a function of the user's.

    Attributes:
        kind: name of its class.
        roles: numbers of its roles.
        eta: of a mix of weights.
        folder: of a checkpoint, or the path of a file of rows.
        column: see `LoadRows`, like the next two.
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
        n_real: so many rows, the first of the order, are data here; the rest belongs to another rank, and is there
            because each rank enters the function, also without data.
        n_rows: rows that the function gets; those behind the rows of the order repeat them.
        n_all: rows of the call that are data, on all ranks together.
        n_ranks: data-parallel ranks.
        is_head: whether this worker reports what the function returns.
        longest: for each input the largest length of a value in the whole call, on all ranks.
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
