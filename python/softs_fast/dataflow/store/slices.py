"""Which rows each data-parallel rank gets: whole groups, balanced by tokens, named so that most bytes stay. Pure."""

from __future__ import annotations

from heapq import heapreplace
from typing import Any

import numpy as np

from ...errors import ConfigError

__all__ = ["Integers", "assignment", "slices_by_count", "slices_by_tokens"]

Integers = np.ndarray[Any, np.dtype[np.int64]]


def slices_by_tokens(tokens: Integers, group: int, n_slices: int) -> Integers:
    """Return the slice of each row, so that slices have about the same number of tokens.

    Largest groups first, each to the slice with the fewest tokens: the largest slice has at most 4/3 of the tokens that
    it has in the best partition.

    Args:
        tokens: int64 [rows], of each row.
        group: rows of a group; they are neighbours.
        n_slices: how many slices there are; some are empty if there are fewer groups.

    Returns:
        int64 [rows], from 0 to n_slices - 1.

    Raises:
        ConfigError: the rows are not whole groups.

    Source: Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Applied Mathematics 17, 1969.
    """
    n_groups = _groups(len(tokens), group)
    of_group = tokens.reshape(n_groups, group).sum(axis=1)
    order = np.argsort(-of_group, kind="stable")
    loads = [(0, 0, one) for one in range(n_slices)]
    chosen = []
    for weight in of_group[order].tolist():
        load, count, one = loads[0]
        chosen.append(one)
        # Groups without tokens are spread, too.
        heapreplace(loads, (load + weight, count + 1, one))
    found = np.empty(n_groups, np.int64)
    found[order] = chosen
    return np.repeat(found, group)


def slices_by_count(n_rows: int, group: int, n_slices: int) -> Integers:
    """Return the slice of each row: neighbours together, and numbers of groups that differ by at most one.

    Args:
        n_rows: how many rows there are.
        group: rows of a group; they are neighbours.
        n_slices: how many slices there are.

    Returns:
        int64 [n_rows].

    Raises:
        ConfigError: the rows are not whole groups.
    """
    n_groups = _groups(n_rows, group)
    return np.repeat(np.arange(n_groups, dtype=np.int64) * n_slices // max(n_groups, 1), group)


def assignment(costs: Integers) -> list[int]:
    """Return a column for each row, each column once, with the least sum of costs.

    Args:
        costs: int64 [n, n], from 0; the largest of all rows together are less than 2^62.

    Source: shortest augmenting paths, Jonker and Volgenant, "A Shortest Augmenting Path Algorithm for Dense and Sparse
    Linear Assignment Problems", Computing 38, 1987.
    """
    n = len(costs)
    # Duals keep costs - of_row - of_column >= 0, and 0 where a row has its column.
    of_row = costs.min(axis=1) if n else np.zeros(0, np.int64)
    of_column = np.zeros(n, np.int64)
    row_at = np.full(n, -1)
    column_at = np.full(n, -1)
    for row in range(n):
        free = np.flatnonzero((costs[row] == of_row[row]) & (row_at < 0))
        if len(free):
            row_at[free[0]], column_at[row] = row, free[0]
    for start in np.flatnonzero(column_at < 0):
        _augment(int(start), costs, of_row, of_column, row_at, column_at)
    return [int(one) for one in column_at]


def _augment(
    start: int, costs: Integers, of_row: Integers, of_column: Integers, row_at: Integers, column_at: Integers
) -> None:
    """Give a row a column along the shortest path, on which other rows change theirs."""
    n = len(costs)
    far = np.iinfo(np.int64).max
    distance = np.full(n, far)
    previous = np.full(n, start)
    is_done = np.zeros(n, bool)
    row, reached = start, 0
    while True:
        through = reached + costs[row] - of_row[row] - of_column
        is_shorter = ~is_done & (through < distance)
        distance[is_shorter] = through[is_shorter]
        previous[is_shorter] = row
        column = int(np.argmin(np.where(is_done, far, distance)))
        reached = int(distance[column])
        is_done[column] = True
        if row_at[column] < 0:
            break
        row = int(row_at[column])
    of_row[start] += reached
    on_tree = np.flatnonzero(is_done & (row_at >= 0))
    of_row[row_at[on_tree]] += reached - distance[on_tree]
    of_column[on_tree] -= reached - distance[on_tree]
    while True:
        row = int(previous[column])
        row_at[column] = row
        column_at[row], column = column, int(column_at[row])
        if row == start:
            return


def _groups(n_rows: int, group: int) -> int:
    if group < 1 or n_rows % group:
        raise ConfigError(f"{n_rows} rows are not whole groups of {group}; give all rows of each group")
    return n_rows // group
