"""Reads the elements of shards by their numbers, whether these are sequences or iterables, and keeps their values."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...errors import FlowError, WireError
from ...user_code import is_ctrl_c
from ..declare.datasets import Dataset
from ..declare.declaration import Declaration
from ..link.columns import Columns
from ..link.elements import ElementsRead, ReadElements
from ..link.results import Failure
from ..master.rows.records import Tag
from ..master.rows.tags import checked_tag
from ..store.ids import element_id
from ..store.values import Value, check_value, n_bytes_of
from .objects import Objects

__all__ = ["Read", "ShardReader", "Shards"]

_log = logging.getLogger(__name__)

#: An iterable that is skipped forward for longer shows its progress, seconds.
_PROGRESS_S = 5.0
#: Stands for an element behind the end.
_END = object()


@dataclass
class Read:
    """What was read of some elements, up to the end of the shard or an error.

    Attributes:
        columns: Values of the elements, for each column of the dataset.
        tags: Tags of each element.
        length: Elements of the shard, if its end was met; None otherwise.
        failure: Reason why the next element cannot be read; None if nothing failed.
        cause: Exception of it.
    """

    columns: list[list[Value]]
    tags: list[dict[str, Tag]] = field(default_factory=list)
    length: int | None = None
    failure: Failure | None = None
    cause: BaseException | None = None


class ShardReader:
    """The shard of one head. A sequence is indexed; an iterable is skipped forward, and begun anew for what was before.

    Args:
        dataset: Dataset of the shard.
        method: Method of the role's object; called at once.
        shard: Number of the shard.
        worker: Number of the worker, for errors.

    Raises:
        Exception: what the method raised.
    """

    def __init__(self, dataset: Dataset, method: Callable[[int, int], Any], shard: int, worker: int) -> None:
        self._dataset, self._method, self._shard = dataset, method, shard
        self._n_shards = len(dataset.heads)
        self._name = f"{dataset.name}: shard {shard} of {self._n_shards} on worker {worker}"
        self._given = method(shard, self._n_shards)
        self._is_sequence = _is_sequence(self._given)
        self._items: Iterator[Any] | None = None
        self._next = 0

    @property
    def n_elements(self) -> int | None:
        """How many elements the shard has; None if it is no sequence."""
        return len(self._given) if self._is_sequence else None

    def read(self, numbers: Sequence[int], is_over: Callable[[], bool] = lambda: False) -> Read:
        """Return elements, by their numbers, which grow.

        Args:
            numbers: Numbers of the elements.
            is_over: Function that returns whether nothing more is wanted; asked before each element.
        """
        found = Read([[] for _ in self._dataset.columns])
        for number in numbers:
            if is_over():
                break
            try:
                item = self._item(number)
                if item is _END:
                    found.length = self.n_elements if self._is_sequence else self._next
                    break
                values, tags = self._checked(item)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                found.failure = Failure.of(error, f"{self._name}, element {number}: ")
                found.cause = error
                break
            for column, value in zip(found.columns, values, strict=True):
                column.append(value)
            found.tags.append(tags)
        return found

    def _item(self, number: int) -> Any:
        """Return an element, or `_END`."""
        if self._is_sequence:
            return self._given[number] if number < len(self._given) else _END
        if self._items is not None and number < self._next:
            self._given, self._items = self._method(self._shard, self._n_shards), None
        if self._items is None:
            self._items, self._next = iter(self._given), 0
        shown_s = time.monotonic()
        while True:
            try:
                item = next(self._items)
            except StopIteration:
                return _END
            self._next += 1
            if self._next > number:
                return item
            if time.monotonic() - shown_s > _PROGRESS_S:
                shown_s = time.monotonic()
                _log.info("%s: %d of %d elements are skipped", self._name, self._next, number)

    def _checked(self, item: Any) -> tuple[list[Value], dict[str, Tag]]:
        wanted = (*self._dataset.columns, *self._dataset.tags)
        if not isinstance(item, Mapping):
            raise FlowError(f"it is a {type(item).__name__}; need a dict of {', '.join(wanted)}")
        missing = [name for name in wanted if name not in item]
        if missing:
            raise FlowError(f"it lacks {', '.join(missing)}; it has {', '.join(map(str, item))}")
        tags = {name: checked_tag(f"tag {name!r}", item[name]) for name in self._dataset.tags}
        return [check_value(name, item[name]) for name in self._dataset.columns], tags


def _is_sequence(given: object) -> bool:
    return (
        hasattr(given, "__len__")
        and hasattr(given, "__getitem__")
        and not isinstance(given, Mapping | str | bytes)
    )


class Shards:
    """The shards of which one worker is the head.

    Args:
        declaration: Declaration of the flow.
        worker: Number of the worker.
        keep: Function that keeps the values of a column by the ids of their elements, and returns their places.
        free: Function that drops what was kept of elements.
    """

    def __init__(
        self,
        declaration: Declaration,
        worker: int,
        keep: Callable[[str, Sequence[int], Sequence[Value]], Sequence[Any]],
        free: Callable[[Sequence[int]], object],
    ) -> None:
        self._datasets = tuple(declaration.datasets.values())
        self._worker, self._keep, self._free = worker, keep, free
        self._readers: dict[int, ShardReader] = {}

    def setup(self, objects: Objects) -> dict[int, int | None]:
        """Have the roles give their shards; returns how many elements each has, by the number of its dataset.

        Raises:
            Exception: what a method of a role raised.
        """
        for source, one in enumerate(self._datasets):
            if self._worker in one.heads:
                method = getattr(objects[one.role], one.method)
                self._readers[source] = ShardReader(one, method, one.heads.index(self._worker), self._worker)
        return {source: reader.n_elements for source, reader in self._readers.items()}

    def check(self, request: ReadElements) -> None:
        """Check that this worker has the shard of a request.

        Raises:
            WireError: it has none of that dataset.
        """
        if request.source not in self._readers:
            raise WireError(f"worker {self._worker} is no head of dataset {request.source}")

    def answer(
        self, request: ReadElements, is_over: Callable[[], bool] = lambda: False
    ) -> tuple[ElementsRead, BaseException | None]:
        """Read elements, and keep them; returns what is said of them, also if they cannot be read or kept, and why not.

        Args:
            request: Request of the master.
            is_over: See `ShardReader.read`.
        """
        dataset = self._datasets[request.source]
        found = self._readers[request.source].read(request.numbers, is_over)
        ids = [element_id(request.source, number) for number in request.numbers[: len(found.tags)]]
        try:
            columns = {
                name: self._keep(name, ids, values)
                for name, values in zip(dataset.columns, found.columns, strict=True)
            }
        except Exception as error:
            return self.failed(request, error), error  # the store is full or closed
        sizes = [[n_bytes_of(value) for value in values] for values in found.columns]
        answer = ElementsRead(
            request.request,
            Columns.of(columns),
            tuple(map(sum, zip(*sizes, strict=True))),
            tuple(found.tags),
            found.length,
            found.failure,
        )
        return answer, found.cause

    def failed(self, request: ReadElements, error: Exception) -> ElementsRead:
        """Keep nothing of a request, and return why."""
        with suppress(FlowError):
            self._free([element_id(request.source, number) for number in request.numbers])
        dataset = self._datasets[request.source]
        where = f"{dataset.name} on worker {self._worker}, elements {list(request.numbers[:8])}: "
        columns = Columns.of(dict.fromkeys(dataset.columns, ()))
        return ElementsRead(request.request, columns, failure=Failure.of(error, where))
