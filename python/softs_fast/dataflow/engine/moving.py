"""Columns of rows for each worker of a role that may read them: slices by dp rank, and the plan of the move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..declare.ranks import ranks_of
from ..declare.roles import Placement
from ..process.work import MoveWork
from ..store import Place, RedistributionPlan, Redistributor, RowsToMove
from ..store.values import n_bytes_of
from ..workers.backend import Backend
from .cutting import lengths_of, slices_of

__all__ = ["parts_of_move", "plan_of_move"]


def plan_of_move(
    backend: Backend, role: Placement, group: int, ids: Sequence[int], columns: Mapping[str, Sequence[Any]]
) -> RedistributionPlan:
    """Return the plan by which rows get to the workers of a role, from where they are now.

    Rows are cut as those of a call that reads these columns, by length where lengths differ. In one process all is there.

    Args:
        backend: Backend, which knows nodes and holders.
        role: Role with the workers that get the rows.
        group: Number of rows that stay together; ids are those of whole groups.
        ids: Ids of the rows.
        columns: Places of the values by the name of the column, as many as ids.
    """
    ranks = ranks_of(role) if backend.cuts_rows else (role.on[:1],)
    holders = {name: backend.holders(name, ids, places) for name, places in columns.items()}
    n_bytes = {name: [_n_bytes(place) for place in places] for name, places in columns.items()}
    tokens = lengths_of(list(columns.values())) if len(ranks) > 1 else None
    slices = slices_of(ids, columns, ranks, group, tokens)
    rows = RowsToMove.of(ids, n_bytes, holders, tokens=tokens, group=group)
    return Redistributor(backend.nodes()).plan(rows, ranks, slices=slices)


def parts_of_move(
    plan: RedistributionPlan, role: Placement, ids: Sequence[int], columns: Mapping[str, Sequence[Any]]
) -> dict[int, MoveWork]:
    """Return what each worker of a role gets; workers of ranks without rows are left out.

    Args:
        plan: Plan that `plan_of_move` has returned.
        role: Role as in `plan_of_move`, like the rest.
    """
    number = {row_id: i for i, row_id in enumerate(ids)}
    parts: dict[int, MoveWork] = {}
    for rank, own in zip(ranks_of(role), plan.slices, strict=True):
        some = [number[row_id] for row_id in own.tolist()]
        if some:
            work = MoveWork(
                tuple(ids[i] for i in some),
                {name: [places[i] for i in some] for name, places in columns.items()},
            )
            parts |= dict.fromkeys(rank, work)
    return parts


def _n_bytes(place: Any) -> int:
    return place.n_bytes if isinstance(place, Place) else n_bytes_of(place)
