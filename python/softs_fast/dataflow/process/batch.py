"""The rows that a function gets."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from operator import index

import numpy as np
import torch
from torch import Tensor

from ...errors import FlowError
from ..master.rows.records import Tag
from ..master.rows.tags import checked_reason
from ..store.values import Column, Value, join, length_of

__all__ = ["Rows"]


class Rows(Mapping[str, Column]):
    """Columns of a batch by the names that the function has for them.

    `rows["seq"]` is a tensor [rows, ...] if all rows have one shape, a `RaggedTensor` if their first dimension differs,
    and otherwise a list, such as where some rows have None. The memory is the function's own; what it changes there is not
    seen by others. `len(rows)` is the number of rows, as of a data frame; `rows.keys()` are the columns.

    Attributes:
        ids: Ids of the rows; those of one group are neighbours.
        group: Rows of one group.
        is_padding: Flag of each row: whether it repeats another one and its outputs are dropped (`uneven="pad"`, and
            all rows of a data-parallel rank for which there is no group).
        weight: Rows of this rank that are no padding, times the number of ranks, divided by those of all ranks: 1 if
            all have as many. Gradients of `loss * rows.weight`, where `loss` is the mean over these rows, have the
            gradient over all rows as their mean over the ranks.
        step: Step of the flow to which the rows belong, from 0.
        use: Number of the use of the rows, from 0 (`reuse`).
        ends_step: Whether the function has done its part of the step with these rows. With `at_least`, gradients are
            added up until then.
        age: Steps since the oldest weights that made one of the rows; 0 where the age does not count.
        tags: Tags of each row: numbers, truth values and short texts by name. A tag that is written there stays with
            the row, unless it is padding.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[Value]],
        ids: Sequence[int],
        *,
        group: int,
        n_padding: int,
        step: int,
        use: int,
        ends_step: bool,
        age: int,
        tags: Sequence[dict[str, Tag]],
        weight: float = 1.0,
        longest: Mapping[str, int] | None = None,
    ) -> None:
        self._values = columns
        self._joined: dict[str, Column] = {}
        self.ids = tuple(ids)
        self.group = group
        self.is_padding = [i >= len(ids) - n_padding for i in range(len(ids))]
        self.step = step
        self.use = use
        self.ends_step = ends_step
        self.age = age
        self.tags = tags
        self.weight = weight
        # Of all ranks; None: all rows of the call are here.
        self._longest = longest
        #: Ids of rows that were dropped, and failed ones, with their reasons.
        self.dropped: dict[int, str] = {}
        self.failed: dict[int, str] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._joined:
            self._joined[name] = join(self._values[name])
        return self._joined[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of rows, padding among them."""
        return len(self.ids)

    # Those of `Mapping` take `len` for the number of keys.

    def keys(self) -> KeysView[str]:
        """Return the names of the columns."""
        return dict.fromkeys(self._values).keys()

    def values(self) -> ValuesView[Column]:
        """Return the columns."""
        return {name: self[name] for name in self}.values()

    def items(self) -> ItemsView[str, Column]:
        """Return the columns with their names."""
        return {name: self[name] for name in self}.items()

    @property
    def n_rows(self) -> int:
        """The number of rows, padding among them; `len` is the same."""
        return len(self.ids)

    def values_of(self, name: str) -> list[Value]:
        """Return the value of each row, whatever their shapes."""
        return list(self._values[name])

    def longest(self, name: str | None = None) -> int:
        """Return the length of the longest value of a column in the whole call, the same on all ranks of the role.

        So ranks that pad to it have equal shapes in their collectives. A tensor is as long as its first dimension, 1 without
        dimensions; a list as its tensors together; bytes as they are, text as in UTF-8; numbers and None are 0 long.

        Args:
            name: Name of the column; None: all columns that the function reads.

        Raises:
            KeyError: the function does not read such a column.
        """
        if self._longest is None:
            self._longest = {key: max(map(length_of, values)) for key, values in self._values.items()}
        return max(self._longest.values(), default=0) if name is None else self._longest[name]

    def drop(self, rows: Iterable[int], reason: str = "filtered") -> None:
        """Drop the groups of rows when the function has returned; the source refills their slots. Padding is skipped.

        Args:
            rows: places in the batch, from 0.
            reason: a word for the counts of the flow.

        Raises:
            FlowError: a place is out of range or no integer, as in a mask, or the reason is no text.
        """
        self.dropped |= dict.fromkeys(self._ids_of(rows), checked_reason(reason))

    def fail(self, rows: Iterable[int], reason: str) -> None:
        """Rows could not be made: their groups never become data, and count against `max_failed` of the flow.

        Padding is skipped.

        Args:
            rows: Places in the batch, from 0.
            reason: Text that says what went wrong.

        Raises:
            FlowError: as `drop`.
        """
        self.failed |= dict.fromkeys(self._ids_of(rows), checked_reason(reason))

    def _ids_of(self, rows: Iterable[int]) -> list[int]:
        places = [_place(one) for one in rows]
        wrong = [place for place in places if not 0 <= place < len(self.ids)]
        if wrong:
            raise FlowError(f"places {wrong} are not in a batch of {len(self.ids)} rows")
        return [self.ids[place] for place in places if not self.is_padding[place]]


def _place(given: object) -> int:
    """Return a place; True and False are none, as of a mask."""
    is_mask = isinstance(given, (bool, np.bool_)) or (isinstance(given, Tensor) and given.dtype is torch.bool)
    if not is_mask:
        try:
            return index(given)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise FlowError(
        f"place {given!r} of a row is a {'truth value' if is_mask else type(given).__name__}; expected places from 0, such "
        "as mask.nonzero()[:, 0]"
    )
