"""In which order elements of several shards become rows, whatever the timing. Pure: no clock, no socket, no tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...errors import FlowError
from .rows.records import Tag
from .rows.saved import SavedGroup

__all__ = ["Arrived", "Planned", "ShardOrder"]


@dataclass(frozen=True)
class Arrived:
    """What the master knows of an element that was read.

    Attributes:
        columns: Place of the value, for each column of the dataset.
        n_bytes: Bytes of these values.
        tags: Small values.
    """

    columns: tuple[Any, ...]
    n_bytes: int
    tags: dict[str, Tag]


@dataclass(slots=True, eq=False)
class Planned:
    """An element that becomes the next group of rows, or a later one.

    Attributes:
        shard: Number of the shard that has the element.
        number: Number of the element in the shard.
        again: Group of a common save that the element was; None if it was not read before.
        is_asked: Whether its head was told to read it.
        value: Element that has arrived.
        error: Error that says why the element cannot be read.
    """

    shard: int
    number: int
    again: SavedGroup | None = None
    is_asked: bool = False
    value: Arrived | None = None
    error: FlowError | None = None


class ShardOrder:
    """Element 0 of each shard, then element 1 of each, and so on; a shard that has ended is left out.

    Elements of a common save come first. An error is found when its element is the next.

    Args:
        taken: how many elements of each shard have become rows; it is counted on.
    """

    def __init__(self, taken: list[int]) -> None:
        self.taken = taken
        self._planned = list(taken)
        self._has_ended = [False] * len(taken)
        self._queue: deque[Planned] = deque()
        self._by_key: dict[tuple[int, int], Planned] = {}
        #: Elements of the queue that no head was told to read.
        self.n_unasked = 0

    def issue_again(self, shard: int, number: int, group: SavedGroup) -> None:
        """Have an element of a common save come before all that was not read yet, behind others of the save."""
        one = Planned(shard, number, group)
        at = sum(one.again is not None for one in self._queue)
        self._queue.insert(at, one)
        self._by_key[shard, number] = one
        self.n_unasked += 1

    @property
    def again(self) -> list[Planned]:
        """Elements of a common save that have not become rows yet."""
        return [one for one in self._queue if one.again is not None]

    def plan(self, n: int) -> None:
        """Have so many elements in the queue, if there are as many."""
        live = [shard for shard, has_ended in enumerate(self._has_ended) if not has_ended]
        while live and len(self._queue) < n:
            shard = min(live, key=self._planned.__getitem__)
            one = Planned(shard, self._planned[shard])
            self._planned[shard] += 1
            self._queue.append(one)
            self._by_key[one.shard, one.number] = one
            self.n_unasked += 1

    def ask(self, without: Container[int] = ()) -> dict[int, list[int]]:
        """Return by shard the numbers of elements that no head was told to read; they count as asked for then.

        Args:
            without: shards of which the heads are not there.
        """
        found: dict[int, list[int]] = {}
        for one in self._queue if self.n_unasked else ():
            if not one.is_asked and one.shard not in without:
                one.is_asked = True
                self.n_unasked -= 1
                found.setdefault(one.shard, []).append(one.number)
        return found

    def has(self, n: int) -> bool:
        """Return whether the next elements are there: so many, or all up to the end or an error."""
        for one in islice(self._queue, n):
            if one.error is not None:
                return True
            if one.value is None:
                return False
        return len(self._queue) >= n or all(self._has_ended)

    def take(self) -> Planned | None:
        """Return the next element, which has to be there; None: all shards have ended.

        Raises:
            FlowError: it cannot be read; it stays the next.
        """
        if not self._queue:
            return None
        one = self._queue[0]
        if one.error is not None:
            raise one.error
        self._queue.popleft()
        del self._by_key[one.shard, one.number]
        if one.again is None:
            self.taken[one.shard] = one.number + 1
        return one

    # --- Events ---

    def arrived(self, shard: int, number: int, value: Arrived) -> None:
        """An element was read."""
        self._by_key[shard, number].value = value

    def failed(self, shard: int, number: int, error: FlowError) -> None:
        """An element cannot be read."""
        self._by_key[shard, number].error = error

    def ended(self, shard: int, length: int, name: str) -> None:
        """A shard has no more elements than so many; the others take the places of what it does not have.

        Args:
            shard: Number of the shard.
            length: Number of its elements.
            name: Name of the shard, for errors.
        """
        self._has_ended[shard] = True
        gone = [one for one in self._queue if one.shard == shard and one.number >= length]
        for one in gone:
            if one.again is not None or length < self.taken[shard]:
                before = max(self.taken[shard], one.number + 1 if one.again is not None else 0)
                one.error = FlowError(
                    f"{name} ends after {length} elements, and {before} of it were read before: it is another one than it was"
                )
        self._drop(one for one in gone if one.error is None)

    def lose(self, shard: int) -> None:
        """The head of a shard has ended, with what it had read: it is told again when there is a new one."""
        for one in self._queue:
            if one.shard == shard and one.is_asked and one.error is None:
                one.is_asked, one.value = False, None
                self.n_unasked += 1

    def _drop(self, gone: Iterable[Planned]) -> None:
        dropped = {(one.shard, one.number) for one in gone}
        self.n_unasked -= sum(not self._by_key.pop(key).is_asked for key in dropped)
        self._queue = deque(one for one in self._queue if (one.shard, one.number) not in dropped)
