"""What one worker reads of a file of rows, and puts into its store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import FlowError, WireError
from ..declare.hooks import LoadRows
from ..link.columns import Columns
from ..link.results import Result
from ..store.values import Value, n_bytes_of
from .row_file import RowFile

__all__ = ["REFUSED", "load_rows"]

#: Among the numbers of a result: values for which the store had no room.
REFUSED = "refused"

_log = logging.getLogger(__name__)


def load_rows(hook: LoadRows, put: Callable[[str, Sequence[int], Sequence[Value]], Sequence[Any]]) -> Result:
    """Read values of a column, and keep them; returns the rows of which they are, and their places.

    What is damaged, or has no room, is left out.

    Args:
        hook: Hook that says what is read.
        put: Function that keeps values of rows.
    """
    ids: list[int] = []
    places: list[Any] = []
    n_refused = n_bytes = 0
    try:
        file = RowFile(hook.path)
        wanted = [file.groups[one] for one in hook.groups if one in file.groups]
        for column in file.columns(wanted, hook.pieces):
            try:
                places += put(column.name, column.ids, column.values)
            except FlowError:
                n_refused += len(column.ids)
                continue
            ids += column.ids
            n_bytes += sum(map(n_bytes_of, column.values))
    except (WireError, OSError) as error:
        _log.warning("%s: %s", hook.path, error)
    numbers = {REFUSED: float(n_refused)} if n_refused else {}
    return Result(
        0, ids=tuple(ids), columns=Columns.of({hook.column: places}), n_bytes=n_bytes, numbers=numbers
    )
