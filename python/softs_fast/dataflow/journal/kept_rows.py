"""Rows of a common save that a flow has again when it goes on: what was generated, scored, and not trained with yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import FlowError, WireError
from ..admission import Again
from ..backends.backend import Backend
from ..declare.calls import TRAIN
from ..declare.plan import FlowPlan
from ..held import HeldRows
from ..master import DRIVER
from ..rows.made import MadeGroup, is_recent, restore_made
from ..rows.saved import NEW
from ..runner import Runner
from ..values import n_bytes_of
from .row_file import Column, RowFile

__all__ = ["FILE", "issue_kept"]

_log = logging.getLogger(__name__)

#: In the folder of a save.
FILE = "rows"


def issue_kept(
    path: Path,
    again: Sequence[Again],
    runner: Runner,
    backend: Backend,
    plan: FlowPlan,
    *,
    n_used: int,
    max_bytes: int | None,
    admit: Callable[[Again], object],
) -> list[Again]:
    """Admit groups of a save for which there are slots, with what functions had made of them; returns the other ones.

    What was made goes to the store of this process, so it does not matter which workers there are. What cannot be read is
    made again, with a warning.

    Args:
        path: of the file with what was made.
        again: groups of the save, in their order.
        runner: has restored the save, and no rows.
        backend: keeps the values.
        plan: of the flow.
        n_used: groups that were admitted before these, and not dropped.
        max_bytes: see `Flow`.
        admit: makes the rows of a group again; called in the order of the groups.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        file = RowFile(path)
    except (WireError, OSError) as error:
        _log.warning(
            "%s: %s; the rows that had been made when the flow was saved are made again", path, error
        )
        return list(again)
    first = _first(again, runner, file, max_bytes)
    order = [group.first_id for group, _ in again if group.partition == TRAIN]
    wanted = []
    for number, first_id in enumerate(order):
        made = file.groups.get(first_id)
        if number >= len(first) or made is None:
            continue
        if is_recent(plan, file.bound, made.version, n_used + number):
            wanted.append(made)
    found = _load(file, wanted, backend)
    for one in first:
        admit(one)
    _restore(found, wanted, runner, backend)
    is_first = {group.first_id for group, _ in first}
    return [one for one in again if one[0].first_id == NEW or one[0].first_id not in is_first]


def _first(again: Sequence[Again], runner: Runner, file: RowFile, max_bytes: int | None) -> list[Again]:
    """Return the groups that are admitted now: the oldest, as far as there are slots and bytes."""
    own = [one for one in again if one[0].partition == TRAIN]
    first: list[Again] = []
    n_bytes = 0
    for group, item in own[: runner.master.rows.room(TRAIN)]:
        made = file.groups.get(group.first_id)
        n_bytes += made.n_bytes if made is not None else 0
        if group.first_id == NEW or (max_bytes is not None and n_bytes > max_bytes):
            break
        first.append((group, item))
    return first


def _load(
    file: RowFile, wanted: Sequence[MadeGroup], backend: Backend
) -> list[tuple[Column, Sequence[object]]]:
    """Put what was made into the store of this process; returns columns with the places of their values."""
    found: list[tuple[Column, Sequence[object]]] = []
    n_refused, why = 0, ""
    for column in file.columns(wanted):
        try:
            found.append((column, backend.put(column.name, column.ids, column.values)))
        except FlowError as error:
            n_refused, why = n_refused + len(column.ids), str(error)
    if file.n_damaged:
        _log.warning(
            "%s: %d values were changed, or cut short, since they were saved; what is needed of them is made again",
            *(file.path, file.n_damaged),
        )
    if n_refused:
        _log.warning("%s: %d values have no room, and are made again: %s", file.path, n_refused, why)
    return found


def _restore(
    found: Sequence[tuple[Column, Sequence[object]]],
    wanted: Sequence[MadeGroup],
    runner: Runner,
    backend: Backend,
) -> None:
    rows, held = runner.master.rows, runner.held
    sizes: dict[int, dict[str, int]] = {one.first_id: {} for one in wanted}
    of_row = {row_id: one for one in wanted for row_id in one.ids}
    for column, places in found:
        held.write(column.name, column.ids, places, DRIVER)
        for row_id, value in zip(column.ids, column.values, strict=True):
            own = sizes[of_row[row_id].first_id]
            own[column.name] = max(own.get(column.name, 0), n_bytes_of(value))
    for one in wanted:
        restore_made(rows, one, sizes[one.first_id], HeldRows.here)
    _log.info(
        "%d rows have what functions had made of them when the flow was saved",
        sum(one.n_rows for one in wanted if sizes[one.first_id]),
    )
