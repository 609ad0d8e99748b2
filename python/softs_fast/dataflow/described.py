"""What a worker has to do for the main part of a call, said when it is asked: rows may have gone by then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .declare.calls import MFCDef
from .held import HeldRows
from .rows.table import RowTable, Taken
from .worker.work import MainWork

__all__ = ["described"]


def described(
    call: MFCDef, number: int, taken: Taken, rows: RowTable, held: HeldRows
) -> Callable[[], MainWork | None]:
    """Return what says what is to be done; None: another function has dropped all rows.

    Args:
        call: Function of the call.
        number: Number of the call.
        taken: Rows of the call.
        rows: Table of all rows.
        held: Places of their values.
    """
    # Places of the first time, by column and row. An order that waits for other values may lose them meanwhile, with
    # the worker that had them: then the worker that gets it cannot read them, and the call runs again.
    known: dict[str, dict[int, Any]] = {}

    def describe() -> MainWork | None:
        ids = tuple(row_id for row_id in taken.ids if row_id in rows)
        if not ids:
            return None
        if not known:
            places = {key: held.places(ids, key) for key in call.input_keys}
            known.update((key, dict(zip(ids, some, strict=True))) for key, some in places.items())
        return MainWork(
            call.name,
            ids,
            {key: [known[key][row_id] for row_id in ids] for key in call.input_keys},
            # What a call that fails has written there does not stay.
            [dict(rows.tags(row_id)) for row_id in ids],
            taken.step,
            taken.use,
            taken.ends_step,
            taken.age,
            call=number,
        )

    return describe
