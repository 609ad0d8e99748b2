"""Rows enter a flow: sources by partition, slots, and the bound of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from ..errors import ConfigError, FlowError
from .declare.calls import TRAIN
from .declare.plan import FlowPlan
from .runner import Runner
from .values import Value, cut

__all__ = ["Admission", "Source", "Sources"]

#: Rows, as dicts of columns.
Source = Iterable[Mapping[str, Value]]


class Sources:
    """Iterators over the elements of sources.

    Args:
        source: one, or several by partition.

    Raises:
        ConfigError: one of them does not begin with a dict of columns.

    Attributes:
        iterators: by partition.
        columns: of the first element, by partition.
    """

    def __init__(self, source: Source | Mapping[str, Source]) -> None:
        sources: Mapping[str, Source] = source if isinstance(source, Mapping) else {TRAIN: source}
        self.iterators: dict[str, Iterator[Mapping[str, Value]]] = {}
        self.columns: dict[str, tuple[str, ...]] = {}
        for name, one in sources.items():
            iterator = iter(one)
            first = next(iterator, None)
            if not isinstance(first, Mapping) or not first:
                raise ConfigError(
                    f"source of partition {name!r} begins with {first!r}; need dicts of columns"
                )
            self.columns[name] = tuple(first)
            self.iterators[name] = chain([first], iterator)


class Admission:
    """Takes elements of the sources, and makes groups of rows of them where there are slots and bytes.

    Args:
        sources: of the flow.
        plan: of the flow.
        runner: gets the rows.
        max_bytes: bytes of rows that may be in the flow; None is no limit.
    """

    def __init__(self, sources: Sources, plan: FlowPlan, runner: Runner, max_bytes: int | None) -> None:
        self._sources = sources
        self._plan = plan
        self._runner = runner
        self._max_bytes = max_bytes
        self._largest_group = 0

    def fill(self) -> bool:
        """Admit groups while there is room; returns whether there were some.

        Raises:
            FlowError: the bytes never suffice for a step, or an element lacks a column.
        """
        master, admitted = self._runner.master, False
        while not master.is_over(TRAIN) and master.rows.room(TRAIN) > 0 and self._has_bytes():
            admitted |= bool(self.next_group(TRAIN))
        return admitted

    def fetch(self, n_rows: int, partition: str) -> tuple[int, ...]:
        """Admit so many rows; returns their ids, fewer at the end of the source.

        Raises:
            ConfigError: see `Flow.fetch`.
            FlowError: an element lacks a column.
        """
        if partition not in self._sources.iterators:
            names = ", ".join(self._sources.iterators)
            raise ConfigError(f"partition {partition!r} has no source; there are {names}")
        room = self._runner.master.rows.room(partition) * self._plan.group
        if n_rows < 1 or n_rows % self._plan.group or n_rows > room:
            raise ConfigError(
                f"fetch of {n_rows} rows: need whole groups of {self._plan.group}, and {room} have a slot"
            )
        groups = (self.next_group(partition) for _ in range(n_rows // self._plan.group))
        return tuple(row_id for group in groups for row_id in group)

    def next_group(self, partition: str) -> tuple[int, ...]:
        """Admit the next group of a partition; returns its ids, none at the end of the source.

        Raises:
            FlowError: the element lacks a column.
        """
        item = next(self._sources.iterators[partition], None)
        if item is None:
            self._runner.master.end_source(partition)
            return ()
        wanted = self._plan.source[partition]
        missing = [name for name in wanted if name not in item]
        if missing:
            raise FlowError(f"an element of the source lacks {', '.join(missing)}; it has {', '.join(item)}")
        return self._runner.admit(partition, {name: cut(name, [item[name]], 1)[0] for name in wanted})

    def _has_bytes(self) -> bool:
        if self._max_bytes is None:
            return True
        rows, group = self._runner.master.rows, self._plan.group
        n_groups, used = len(rows) // group, rows.n_bytes
        self._largest_group = max(self._largest_group, used // n_groups if n_groups else 0)
        if (n_groups + 1) * self._largest_group <= self._max_bytes:
            return True
        need = self._plan.partitions[TRAIN].groups_per_step
        if n_groups < need:
            raise FlowError(
                f"max_bytes is {self._max_bytes}: a step needs {need} groups of some {self._largest_group} bytes, "
                f"{need * self._largest_group} in all; raise it or use fewer rows"
            )
        return False
