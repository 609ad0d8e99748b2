"""Rows enter a flow: sources by partition, slots, and the bound of bytes."""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from ...errors import ConfigError, FlowError
from ..declare.calls import TRAIN
from ..declare.datasets import Dataset
from ..declare.plan import FlowPlan
from ..master.rows.saved import NEW, SavedGroup
from ..store.values import Value, cut
from .runner import Runner

__all__ = ["Admission", "Again", "Source", "Sources"]

_log = logging.getLogger(__name__)

#: Rows, as dicts of columns; or a dataset that workers read.
Source = Iterable[Mapping[str, Value]] | Dataset
#: A group of which the rows are made again, and its element of the source; of a dataset, which element it is.
Again = tuple[SavedGroup, dict[str, Value]]

#: A source that is skipped forward for longer shows its progress, seconds.
_PROGRESS_S = 5.0
#: No element.
_NOTHING = object()


class Sources:
    """Iterators over the elements of sources; of datasets on workers, how far they were read.

    Args:
        source: One source, or several by partition.

    Raises:
        ConfigError: one of them does not begin with a dict of columns.

    Attributes:
        iterators: Iterators of the sources that are no datasets, by partition.
        datasets: Sources that are datasets on workers, by partition.
        positions: Number of elements of each shard of a dataset that have become rows, by partition.
        columns: Columns of the first element of each source, by partition.
        n_read: Number of elements that were read, by partition.
    """

    def __init__(self, source: Source | Mapping[str, Source]) -> None:
        sources: Mapping[str, Source] = source if isinstance(source, Mapping) else {TRAIN: source}
        self.iterators: dict[str, Iterator[Mapping[str, Value]]] = {}
        self.columns: dict[str, tuple[str, ...]] = {}
        self.n_read = dict.fromkeys(sources, 0)
        # Of each source what it is, and its iterator.
        self._given: dict[str, tuple[Any, Any]] = {}
        self.datasets = {name: one for name, one in sources.items() if isinstance(one, Dataset)}
        self.positions = {name: [0] * len(one.heads) for name, one in self.datasets.items()}
        for name, one in sources.items():
            if isinstance(one, Dataset):
                self.columns[name] = one.columns
                continue
            iterator = iter(one)
            first = next(iterator, _NOTHING)
            if first is _NOTHING:
                raise ConfigError(
                    f"source of partition {name!r} is empty; expected at least one dict of columns"
                )
            if not isinstance(first, Mapping) or not first:
                raise ConfigError(
                    f"source of partition {name!r} begins with {first!r}; need dicts of columns"
                )
            self.columns[name] = tuple(first)
            self.iterators[name] = chain([first], iterator)
            self._given[name] = one, iterator

    def read(self, partition: str) -> Mapping[str, Value] | None:
        """Return the next element of a source; None at its end."""
        item = next(self.iterators[partition], None)
        self.n_read[partition] += item is not None
        return item

    def state(self, partition: str) -> Any:
        """Return what `state_dict` of a source says; None if it has none, or was not read yet. Of a dataset its positions."""
        if partition in self.positions:
            return {"shards": list(self.positions[partition])}
        source = self._stateful(partition)
        return source.state_dict() if source is not None and self.n_read[partition] else None

    def restore(self, partition: str, n_read: int, state: Any) -> None:
        """Have a source go on behind so many elements, counted from its first one.

        Args:
            partition: Partition of the source.
            n_read: Number of elements that were read.
            state: Value that `state` returned; None: the elements that are left are skipped, none if more were read.

        Raises:
            FlowError: it is another source than it was.
        """
        if partition in self.positions:
            self.positions[partition][:] = state["shards"]
            self.n_read[partition] = n_read
            return
        source = self._stateful(partition)
        if state is not None and source is None:
            raise FlowError(
                f"the journal has a state of the source of partition {partition!r}, which has no load_state_dict now"
            )
        if state is not None and source is not None:
            source.load_state_dict(state)
            given, iterator = self._given[partition]
            self.iterators[partition] = iterator if source is iterator else iter(given)
            self.n_read[partition] = n_read
        else:
            self._skip(partition, n_read)

    def n_elements(self, partition: str) -> int | None:
        """Return how many elements a source of this process has; None if it is no sequence."""
        given, _ = self._given[partition]
        return len(given) if isinstance(given, Sequence) else None

    def _skip(self, partition: str, n: int) -> None:
        shown_s = time.monotonic()
        # Each one counts at once: this may be interrupted, and goes on there when the flow is opened again.
        while self.n_read[partition] < n:
            if self.read(partition) is None:
                raise FlowError(
                    f"the source of partition {partition!r} ends after {self.n_read[partition]} elements, and {n} of it "
                    "were read before: it is another one than that of the journal"
                )
            if time.monotonic() - shown_s > _PROGRESS_S:
                shown_s = time.monotonic()
                _log.info(
                    "source of partition %r: %d of %d elements are skipped",
                    partition,
                    self.n_read[partition],
                    n,
                )

    def _stateful(self, partition: str) -> Any:
        """Return what keeps the position of a source: it or its iterator; None if neither does."""
        for one in self._given[partition]:
            if all(callable(getattr(one, name, None)) for name in ("state_dict", "load_state_dict")):
                return one
        return None


class Admission:
    """Takes elements of the sources, and makes groups of rows of them where there are slots and bytes.

    Args:
        sources: Sources of the flow.
        plan: Plan of the flow.
        runner: Runner that gets the rows.
        max_bytes: See `Flow`.
    """

    def __init__(self, sources: Sources, plan: FlowPlan, runner: Runner, max_bytes: int | None) -> None:
        self._sources = sources
        self._plan = plan
        self._runner = runner
        self._given_bytes = max_bytes
        self._largest_group = 0
        self._again: dict[str, deque[Again]] = {name: deque() for name in sources.iterators}
        self._datasets = runner.datasets
        self._datasets.begin(sources.positions)
        #: Called with partition and columns of each element that is read; of a dataset with which it is.
        self.on_read: Callable[[str, dict[str, Value]], None] = lambda partition, item: None

    @functools.cached_property
    def max_bytes(self) -> int | None:
        """Bytes of rows beyond which no new ones are admitted; None is no limit. Known when the backend is open."""
        if self._given_bytes is not None:
            return self._given_bytes
        free = self._runner.free_bytes()
        return None if free is None else free // 2

    def issue_again(self, groups: Iterable[Again]) -> None:
        """Admit these groups before anything else is read of their sources, as soon as they have slots."""
        for one in groups:
            if one[0].partition in self._datasets:
                self._datasets.issue_again(*one)
            else:
                self._again[one[0].partition].append(one)

    def admit_again(self, one: Again) -> None:
        """Admit a group of a common save at once. Of a dataset on workers it was issued, and is the next; it is awaited.

        Raises:
            FlowError: its element cannot be read, or a worker was lost.
        """
        group, item = one
        if group.partition not in self._datasets:
            self._runner.admit(group.partition, item, group)
            return
        while not self.has(1, group.partition):
            acted = self._runner.advance(automatic=False)
            if self._runner.lost is not None or not acted:
                raise self._runner.lost or FlowError(f"an element of {group.partition!r} does not arrive")
        self._next_element(group.partition)

    @property
    def waiting(self) -> tuple[Again, ...]:
        """Groups that are to be issued again, and have not been yet."""
        own = tuple(one for waiting in self._again.values() for one in waiting)
        return (*own, *self._datasets.waiting())

    def fill(self) -> bool:
        """Admit groups while there is room; returns whether there were some.

        Of a dataset on workers those of a step are admitted at once, so that what functions get does not depend on when
        each element arrives.

        Raises:
            FlowError: an element cannot be read, or lacks a column.
        """
        master, admitted = self._runner.master, False
        self._datasets.check()
        per_step = self._plan.partitions[TRAIN].groups_per_step
        if master.is_over(TRAIN) or not self.has(min(master.rows.room(TRAIN), per_step), TRAIN):
            return False
        while (
            not master.is_over(TRAIN)
            and master.rows.room(TRAIN) > 0
            # Where no call can run before more rows come, one group is admitted in any case: so the flow never hangs.
            and (self._has_bytes() or (master.is_idle and not admitted))
            and self.has(1, TRAIN)
        ):
            admitted |= bool(self.next_group(TRAIN))
        return admitted

    def has(self, n_groups: int, partition: str) -> bool:
        """Return whether the next elements of a partition are there, or its end; heads of a dataset are asked for them.

        In training they also read ahead what has a slot, and one step more.
        """
        if partition not in self._datasets:
            return True
        ahead = 0
        if partition == TRAIN:
            room, per_step = (
                self._runner.master.rows.room(TRAIN),
                self._plan.partitions[TRAIN].groups_per_step,
            )
            ahead = max(room - n_groups, 0) + per_step
        return self._datasets.want(partition, n_groups, ahead)

    def check_fetch(self, n_rows: int, partition: str) -> None:
        """Check that so many rows can be admitted.

        Raises:
            ConfigError: see `Flow.fetch`.
        """
        if partition not in self._sources.columns:
            names = ", ".join(self._sources.columns)
            raise ConfigError(f"partition {partition!r} has no source; there are {names}")
        room = self._runner.master.rows.room(partition) * self._plan.group
        if n_rows < 1 or n_rows % self._plan.group or n_rows > room:
            raise ConfigError(
                f"fetch of {n_rows} rows: need whole groups of {self._plan.group}, and {room} have a slot"
            )

    def fetch(self, n_rows: int, partition: str) -> tuple[int, ...]:
        """Admit so many rows, see `check_fetch` and `has`; returns their ids, fewer at the end of the source.

        Raises:
            FlowError: an element cannot be read, or lacks a column.
        """
        groups = (self.next_group(partition) for _ in range(n_rows // self._plan.group))
        return tuple(row_id for group in groups for row_id in group)

    def next_group(self, partition: str) -> tuple[int, ...]:
        """Admit the next group of a partition; returns its ids, none at the end of the source.

        Raises:
            FlowError: the element cannot be read, or lacks a column.
        """
        if partition in self._datasets:
            return self._next_element(partition)
        if self._again[partition]:
            group, columns = self._again[partition].popleft()
            return self._runner.admit(partition, columns, None if group.first_id == NEW else group)
        new = self._next_columns(partition)
        return self._runner.admit(partition, new) if new is not None else ()

    def _next_columns(self, partition: str) -> dict[str, Value] | None:
        """Read the next element of a source; None at its end, which the master is told."""
        item = self._sources.read(partition)
        if item is None:
            self._runner.master.end_source(partition)
            return None
        wanted = self._plan.source[partition]
        missing = [name for name in wanted if name not in item]
        if missing:
            raise FlowError(f"an element of the source lacks {', '.join(missing)}; it has {', '.join(item)}")
        columns = {name: cut(name, [item[name]], 1)[0] for name in wanted}
        self.on_read(partition, columns)
        return columns

    def _next_element(self, partition: str) -> tuple[int, ...]:
        found = self._datasets.admit(partition)
        if found is None:
            self._runner.master.end_source(partition)
            return ()
        ids, item = found
        if item is not None:
            self._sources.n_read[partition] += 1
            self.on_read(partition, item)
        return ids

    def _has_bytes(self) -> bool:
        """Return whether the rows with another group are expected to have at most `max_bytes`."""
        if self.max_bytes is None:
            return True
        rows = self._runner.master.rows
        n_groups = len(rows) // self._plan.group
        self._largest_group = max(self._largest_group, rows.n_bytes // n_groups if n_groups else 0)
        if self._given_bytes is not None and not rows.counts[TRAIN].complete:
            # How large rows become is known when the first step is complete.
            return n_groups < self._plan.partitions[TRAIN].groups_per_step
        return (n_groups + 1) * self._largest_group <= self.max_bytes
