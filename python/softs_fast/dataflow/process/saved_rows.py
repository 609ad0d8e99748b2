"""What one worker reads of a file of rows, and puts into its store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import FlowError, WireError
from ..declare.hooks import LoadRows
from ..store.values import Value
from .functions import Outcome
from .row_file import RowFile

__all__ = ["REFUSED", "load_rows"]

#: Among the numbers of an outcome: values for which the store had no room.
REFUSED = "refused"

_log = logging.getLogger(__name__)


def load_rows(hook: LoadRows, put: Callable[[str, Sequence[int], Sequence[Value]], Sequence[Any]]) -> Outcome:
    """Read values of a column, and keep them; returns the rows of which they are, and their places.

    What is damaged, or has no room, is left out.

    Args:
        hook: says what is read.
        put: keeps values of rows.
    """
    outcome = Outcome()
    places: list[Any] = []
    try:
        file = RowFile(hook.path)
        wanted = [file.groups[one] for one in hook.groups if one in file.groups]
        for column in file.columns(wanted, hook.pieces):
            try:
                places += put(column.name, column.ids, column.values)
            except FlowError:
                outcome.numbers[REFUSED] = outcome.numbers.get(REFUSED, 0.0) + len(column.ids)
                continue
            outcome.ids += column.ids
    except (WireError, OSError) as error:
        _log.warning("%s: %s", hook.path, error)
    outcome.columns = {hook.column: places}
    return outcome
