"""Reads the elements of one shard by their numbers, whether it is a sequence or an iterable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import FlowError
from ...user_code import is_ctrl_c
from ..declare.datasets import Dataset
from ..link.results import Failure
from ..master.rows.records import Tag
from ..master.rows.tags import checked_tag
from ..store.values import Value, check_value

__all__ = ["Read", "ShardReader"]

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
