"""The rows of a call for each worker of its role: whole groups to data-parallel ranks, and the same to all peers of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...records import replace
from ..declare.calls import Interface, MFCDef
from ..declare.ranks import heads_of, ranks_of
from ..link.columns import Columns
from ..link.tasks import MainTask, Slice
from ..store.places import Place
from ..store.redistribution import Redistributor, RowsToMove

__all__ = ["lengths_of", "parts_of", "slices_of"]


def parts_of(work: MainTask, call: MFCDef, group: int) -> dict[int, MainTask]:
    """Return the part of each worker of the function's role.

    Groups go to the ranks that have their values, by length where lengths differ. Those of a `generate`, and of
    `uneven="pad"`, where all ranks have the same number of rows, go by count. A rank without a group gets the first one
    of the call, as padding.

    Args:
        work: function and rows; its places are `Place`s.
        call: the function; it has a role.
        group: rows that stay together.
    """
    role = call.model_name
    assert role is not None
    if len(role.on) == 1:
        return {role.on[0]: work}
    ranks, heads = ranks_of(role), heads_of(role)
    is_padded = call.uneven == "pad" and call.least == call.n_seqs
    by_count = is_padded or call.interface_type is Interface.GENERATE
    columns = work.columns.places
    tokens = None if by_count else lengths_of(list(columns.values()))
    slices = slices_of(work.ids, columns, ranks, group, tokens)
    n_full = -(-(call.n_seqs // group) // len(ranks)) * group if is_padded else 0
    places = {row_id: i for i, row_id in enumerate(work.ids)}
    longest = tuple(max(map(_length, column)) for column in columns.values())
    found = {}
    for rank, own in zip(ranks, slices, strict=True):
        n_real = len(own)
        rows = [places[row_id] for row_id in own] or list(range(min(group, len(work.ids))))
        one = replace(
            work,
            ids=tuple(work.ids[i] for i in rows),
            columns=Columns.of({key: [column[i] for i in rows] for key, column in columns.items()}),
            tags=tuple(work.tags[i] for i in rows),
        )
        for worker in rank:
            n_rows, is_head = max(n_full, len(rows)), worker in heads
            part = Slice(n_real, n_rows, len(work.ids), len(ranks), is_head, longest)
            found[worker] = replace(one, part=part)
    return found


def lengths_of(columns: Sequence[Sequence[Place]]) -> list[int] | None:
    """Return the length of each row: the largest of its values; None if all are equal.

    See `length_of`; numbers and None have no length.
    """
    lengths = [max(map(_length, values)) for values in zip(*columns, strict=True)]
    return lengths if len(set(lengths)) > 1 else None


def _length(place: Place) -> int:
    """Return what `length_of` says of the value, by what is known of it."""
    if place.kind in ("bytes", "str"):
        return place.n_bytes
    return sum(shape[0] if shape else 1 for _, shape in place.parts)


def slices_of(
    ids: Sequence[int],
    columns: Mapping[str, Sequence[Place]],
    ranks: Sequence[Sequence[int]],
    group: int,
    tokens: Sequence[int] | None,
) -> list[list[int]]:
    """Return the rows of each dp rank.

    Args:
        ids: Ids of the rows.
        columns: Places of the values by the name of the column, as many as ids.
        ranks: Workers of each dp rank.
        group: Number of rows that stay together.
        tokens: Number of tokens of each row, by which slices are balanced; None: by count.
    """
    if len(ranks) == 1:
        return [list(ids)]
    holders = {key: [(one.worker,) for one in column] for key, column in columns.items()}
    known = {worker for rank in ranks for worker in rank}
    known |= {worker for column in holders.values() for (worker,) in column}
    # As if all workers were on one host: so the bits do not depend on which hosts they are on. Between hosts, more than
    # the least bytes may move for it.
    plans = Redistributor(dict.fromkeys(known, 0))
    n_bytes = {key: [one.n_bytes for one in column] for key, column in columns.items()}
    plan = plans.plan(RowsToMove.of(ids, n_bytes, holders, tokens=tokens, group=group), ranks)
    return [one.tolist() for one in plan.slices]
