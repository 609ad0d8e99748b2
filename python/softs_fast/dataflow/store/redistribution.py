"""The plan by which rows get from their holders to the workers of the next call. Pure: no clock, socket or torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ConfigError, FlowError
from .senders import senders_of
from .slices import Integers, assignment, slices_by_count, slices_by_tokens

__all__ = ["Pull", "RedistributionPlan", "Redistributor", "RowsToMove"]

# The tie-break of the assignment has this many steps for all ranks together, so that costs fit 64 bits.
_STEPS = 1 << 16
_MOST_RANKS = 4096


@dataclass(frozen=True, eq=False)
class Pull:
    """Rows of a column that one worker reads from another one.

    Attributes:
        source: the worker that holds them.
        target: the worker that gets them.
        column: their column.
        ids: int64 [rows], in the order of the slice.
        n_bytes: Bytes of their values.
    """

    source: int
    target: int
    column: str
    ids: Integers
    n_bytes: int


@dataclass(frozen=True)
class RedistributionPlan:
    """How the rows of a call get to its workers.

    Attributes:
        slices: Ids of the rows of each dp rank, int64, in the order of the call.
        tokens: Number of tokens of each slice.
        pulls: Rows that workers read from other nodes.
        reads: Rows that workers read from stores of their own node, once the pulls of their sources are complete.
        least_bytes: Least bytes between nodes in any plan with these slices, whichever rank gets which.
    """

    slices: tuple[Integers, ...]
    tokens: tuple[int, ...]
    pulls: tuple[Pull, ...]
    reads: tuple[Pull, ...]
    least_bytes: int

    @property
    def n_bytes(self) -> int:
        """Bytes between nodes."""
        return sum(one.n_bytes for one in self.pulls)

    @property
    def read_bytes(self) -> int:
        """Bytes that workers copy from stores of their own node."""
        return sum(one.n_bytes for one in self.reads)

    def explain(self) -> str:
        """Return the numbers of the plan as text, one line each."""
        return "\n".join(
            [
                f"slices: {_numbers([len(one) for one in self.slices])} rows; {_numbers(self.tokens)} tokens",
                f"between nodes: {self.n_bytes} bytes in {len(self.pulls)} pulls; least possible {self.least_bytes}",
                f"inside nodes: {self.read_bytes} bytes in {len(self.reads)} reads",
            ]
        )


@dataclass(frozen=True, eq=False)
class RowsToMove:
    """Rows of a call and where they are; `of` makes it of mappings.

    Attributes:
        ids: int64 [rows]; those of a group are neighbours.
        columns: names.
        n_bytes: int64 [columns, rows], of each value.
        holder_sets: different sets of workers, each sorted and not empty.
        held_by: int64 [columns, rows], the set of each value.
        tokens: int64 [rows], by which slices are balanced; None: by count.
        group: rows of a group.
    """

    ids: Integers
    columns: tuple[str, ...]
    n_bytes: Integers
    holder_sets: tuple[tuple[int, ...], ...]
    held_by: Integers
    tokens: Integers | None = None
    group: int = 1

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        n_bytes: Mapping[str, Sequence[int]],
        holders: Mapping[str, Sequence[Iterable[int]]],
        *,
        tokens: Sequence[int] | None = None,
        group: int = 1,
    ) -> RowsToMove:
        """Return the rows of plain types.

        Args:
            ids: Ids of the rows; rows of one group are neighbours.
            n_bytes: Bytes of each row, by column.
            holders: Workers that hold each row, by column.
            tokens: Number of tokens of each row; None: slices are balanced by count.
            group: Number of rows of a group.

        Raises:
            ConfigError: lengths or columns differ.
        """
        if set(n_bytes) != set(holders):
            raise ConfigError(f"columns with bytes are {sorted(n_bytes)}, with holders {sorted(holders)}")
        columns = tuple(n_bytes)
        lengths = {len(one) for one in (ids, *n_bytes.values(), *holders.values(), tokens or ids)}
        if len(lengths) > 1:
            raise ConfigError(f"{len(ids)} rows, but columns or tokens of {sorted(lengths)} rows")
        numbers: dict[tuple[int, ...], int] = {}
        held = [
            [numbers.setdefault(tuple(sorted(set(one))), len(numbers)) for one in holders[column]]
            for column in columns
        ]
        shape = (len(columns), len(ids))
        return cls(
            np.array(ids, np.int64).reshape(len(ids)),
            columns,
            np.array([n_bytes[column] for column in columns], np.int64).reshape(shape),
            tuple(numbers),
            np.array(held, np.int64).reshape(shape),
            None if tokens is None else np.array(tokens, np.int64).reshape(len(ids)),
            group,
        )


class Redistributor:
    """Plans moves of rows between workers of which it knows the nodes.

    Args:
        nodes: the node of each worker.

    Example:
        >>> plans = Redistributor({0: 0, 1: 0, 2: 1})
        >>> rows = RowsToMove.of([5, 6], {"seq": [80, 8]}, {"seq": [[0], [1]]})
        >>> plan = plans.plan(rows, [[2], [1]])
        >>> plan.pulls[0].source, plan.pulls[0].target, plan.pulls[0].ids.tolist(), plan.n_bytes
        (1, 2, [6], 8)

    Source: own, see docs/dataflow_design.md; a move between meshes as multicasts, Zhuang et al., "On Optimizing the
    Communication of Model Parallelism", MLSys 2023 (arXiv 2211.05322).
    """

    def __init__(self, nodes: Mapping[int, int]) -> None:
        self._nodes = dict(nodes)
        self._number = {node: i for i, node in enumerate(sorted(set(nodes.values())))}

    def plan(
        self,
        rows: RowsToMove,
        targets: Sequence[Sequence[int]],
    ) -> RedistributionPlan:
        """Return a plan by which the workers of each dp rank get the rows of one slice.

        Each node gets a value at most once from other nodes, from the least loaded holder; its workers read it there.

        Args:
            rows: Rows of the call.
            targets: Workers of each dp rank: peers by tp, pp and cp get the same rows.

        Raises:
            ConfigError: a worker has no node or two ranks, a rank has none, there are no ranks or more than 4096, rows
                are not whole groups, or numbers are negative or too large.
            FlowError: a row has no holder.
        """
        self._check(rows, targets)
        return _Planning(self._nodes, self._number, rows, targets).plan()

    def _check(self, rows: RowsToMove, targets: Sequence[Sequence[int]]) -> None:
        members = [worker for rank in targets for worker in rank]
        if not 0 < len(targets) <= _MOST_RANKS or not all(targets):
            raise ConfigError(
                f"{len(targets)} ranks have {sorted({len(rank) for rank in targets})} workers; need 1 to {_MOST_RANKS} "
                "ranks, each with a worker"
            )
        if len(set(members)) != len(members):
            raise ConfigError(f"a worker is in two ranks: {[list(rank) for rank in targets]}")
        unknown = ({*members} | {one for holders in rows.holder_sets for one in holders}) - set(self._nodes)
        if unknown:
            raise ConfigError(
                f"workers {sorted(unknown)} have no node; nodes are known of {sorted(self._nodes)}"
            )
        empty = [i for i, holders in enumerate(rows.holder_sets) if not holders]
        if empty:
            column, row = np.argwhere(np.isin(rows.held_by, empty))[0]
            raise FlowError(
                f"row {rows.ids[row]} has no holder of column {rows.columns[column]!r}; make it again before it is moved"
            )
        for what, numbers in (("bytes", rows.n_bytes), ("tokens", rows.tokens)):
            if numbers is not None and numbers.size and not 0 <= numbers.min() <= numbers.max() < 1 << 46:
                raise ConfigError(
                    f"{what} of a row are {numbers.min()} to {numbers.max()}; need 0 to 2^46 - 1"
                )
        if int(rows.n_bytes.sum()) * max(map(len, targets)) >= 1 << 46:
            raise ConfigError(f"a plan has {rows.n_bytes.sum()} bytes; need less than 2^46 for all peers")


class _Planning:
    """The steps of one plan. Values are numbered column by column; `lacks[set, node]` says what a node needs."""

    def __init__(
        self,
        nodes: dict[int, int],
        number: dict[int, int],
        rows: RowsToMove,
        targets: Sequence[Sequence[int]],
    ) -> None:
        self.node_of = {worker: number[node] for worker, node in nodes.items()}
        self.rows = rows
        self.targets = targets
        self.n_nodes = len(number)
        self.sets = rows.holder_sets
        self.n_rows = len(rows.ids)
        self.sizes = rows.n_bytes.reshape(-1)
        self.held_by = rows.held_by.reshape(-1)
        self.lacks = np.ones((len(self.sets), self.n_nodes), bool)
        for i, holders in enumerate(self.sets):
            self.lacks[i, [self.node_of[one] for one in holders]] = False
        #: For each rank, the member that gets what a node lacks, by node.
        self.heads = [
            {self.node_of[worker]: worker for worker in sorted(rank, reverse=True)} for rank in targets
        ]

    def plan(self) -> RedistributionPlan:
        """Make the slices, name them, and choose senders."""
        rows, n_ranks = self.rows, len(self.targets)
        if rows.tokens is None:
            slice_of = slices_by_count(self.n_rows, rows.group, n_ranks)
        else:
            slice_of = slices_by_tokens(rows.tokens, rows.group, n_ranks)
        between, rank_of_slice = self._named(slice_of)
        rank_of = np.array(rank_of_slice, np.int64)[slice_of]
        in_rank = [np.flatnonzero(rank_of == rank) for rank in range(n_ranks)]
        weights = rows.tokens if rows.tokens is not None else np.ones(self.n_rows, np.int64)
        return RedistributionPlan(
            tuple(rows.ids[one] for one in in_rank),
            tuple(int(weights[one].sum()) for one in in_rank),
            self._pulled(in_rank),
            self._read(in_rank),
            int(sum(between[i, rank] for i, rank in enumerate(rank_of_slice))),
        )

    def _named(self, slice_of: Integers) -> tuple[Integers, list[int]]:
        """Return bytes between nodes of each slice at each rank, and the rank of each slice."""
        n = len(self.targets)
        n_sets = len(self.sets)
        key = np.tile(slice_of, len(self.rows.columns)) * n_sets + self.held_by
        amounts = np.zeros(n * n_sets, np.int64)
        np.add.at(amounts, key, self.sizes)
        of_slice = amounts.reshape(n, n_sets)
        # Of a set: how many nodes of a rank lack it, and how many of its workers do not hold it.
        lacking = np.array([self.lacks[:, list(heads)].sum(axis=1) for heads in self.heads]).reshape(
            n, n_sets
        )
        away = np.array(
            [[len(set(rank).difference(holders)) for holders in self.sets] for rank in self.targets]
        ).reshape(n, n_sets)
        between = of_slice @ lacking.T
        inside = of_slice @ away.T
        # What is equal between nodes is decided by what workers need not copy.
        step = int(inside.max(initial=0)) // (_STEPS // n - 1) + 1
        return between, assignment(between * _STEPS + inside // step)

    def _pulled(self, in_rank: list[Integers]) -> tuple[Pull, ...]:
        """Return what workers read from other nodes."""
        values, targets = [], []
        for rank, mine in enumerate(in_rank):
            all_mine = self._values_of(mine)
            for node, head in self.heads[rank].items():
                found = all_mine[self.lacks[self.held_by[all_mine], node]]
                values.append(found)
                targets.append(np.full(len(found), head))
        value, target = np.concatenate(values), np.concatenate(targets)
        held, sizes = self.held_by[value], self.sizes[value]
        sender = np.array([holders[0] for holders in self.sets], np.int64)[held]
        has_choice = np.array([len(holders) > 1 for holders in self.sets], bool)[held]
        sent = np.bincount(sender[~has_choice], sizes[~has_choice]).astype(np.int64)
        sender[has_choice] = senders_of(
            [self.sets[one] for one in held[has_choice].tolist()],
            sizes[has_choice].tolist(),
            Counter(dict(enumerate(sent.tolist()))),
        )
        return tuple(self._pulls(sender, target, value))

    def _read(self, in_rank: list[Integers]) -> tuple[Pull, ...]:
        """Return what workers read from stores of their own node."""
        found: list[Pull] = []
        by_node = [
            [[one for one in holders if self.node_of[one] == node] for holders in self.sets]
            for node in range(self.n_nodes)
        ]
        for rank, mine in enumerate(in_rank):
            all_mine = self._values_of(mine)
            held = self.held_by[all_mine]
            for worker in self.targets[rank]:
                node = self.node_of[worker]
                head = self.heads[rank][node]
                # Workers begin with different holders.
                sources = [
                    worker if worker in near else near[worker % len(near)] if near else head
                    for near in by_node[node]
                ]
                source = np.array(sources, np.int64)[held]
                away = source != worker
                n_away = int(away.sum())
                found += self._pulls(source[away], np.full(n_away, worker), all_mine[away])
        return tuple(found)

    def _pulls(self, source: Integers, target: Integers, value: Integers) -> list[Pull]:
        """Return pulls, one for each source, target and column; rows stay in their order."""
        if not len(value):
            return []
        column = value // self.n_rows
        order = np.lexsort((value, column, target, source))
        source, target, column, value = source[order], target[order], column[order], value[order]
        is_new = (np.diff(source) != 0) | (np.diff(target) != 0) | (np.diff(column) != 0)
        starts = np.concatenate(([0], np.flatnonzero(is_new) + 1))
        sums = np.add.reduceat(self.sizes[value], starts).tolist()
        ids = np.split(self.rows.ids[value % self.n_rows], starts[1:])
        return [
            Pull(int(source[at]), int(target[at]), self.rows.columns[column[at]], some, n_bytes)
            for at, some, n_bytes in zip(starts.tolist(), ids, sums, strict=True)
        ]

    def _values_of(self, mine: Integers) -> Integers:
        return np.concatenate([mine + i * self.n_rows for i in range(len(self.rows.columns))] or [mine[:0]])


def _numbers(found: Sequence[int]) -> str:
    most = 8
    shown = " ".join(map(str, found[:most]))
    return shown if len(found) <= most else f"{shown} ... ({len(found)} slices, {min(found)} to {max(found)})"
