"""Ready groups of one function, the oldest first."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import islice

from ..declare.plan import FunctionPlan
from .records import Group

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Chooses the groups of the next call of a function.

    The work for one group does not depend on how many there are, but for the logarithm in a heap.

    Args:
        plan: of the function.
        number: of the function; its bit in the marks of groups.
        partition: number of its partition.
        window: for a strict function, among how many groups from the oldest on it chooses.
        groups: all groups of the partition by index, the owner's.
    """

    def __init__(
        self, plan: FunctionPlan, number: int, partition: int, window: int, groups: Mapping[int, Group]
    ) -> None:
        self.plan = plan
        self.number = number
        self.bit = 1 << number
        self.partition = partition
        #: Uses of groups, taken so far; what exceeds a multiple of a pass belongs to the present one.
        self.n_taken = 0
        self._window = window
        self._groups = groups
        self._heap: list[int] = []
        # In the order in which they will be taken; the values mean nothing.
        self._picked: dict[int, None] = {}
        self._anchor = 0

    def push(self, group: Group) -> None:
        """Add a group, all rows of which have the inputs."""
        if not group.staged & self.bit:
            group.staged |= self.bit
            heappush(self._heap, group.index)
            self.pick()

    def discard(self, group: Group) -> None:
        """Remove a group that is dropped, or lacks an input again."""
        if group.staged & self.bit:
            # What is in the heap is skipped when it gets to the front.
            group.staged &= ~self.bit
            self._picked.pop(group.index, None)
        self._anchor = min(self._anchor, group.index)
        self.pick()

    @property
    def n_ready(self) -> int:
        """How many groups may be taken, up to those of one pass."""
        return len(self._picked)

    def next_size(self, *, is_last: bool = False) -> int:
        """Return of how many groups the next call would be; 0 if too few are ready.

        Args:
            is_last: whether no more groups will ever be ready than those that are.
        """
        left = self.plan.groups - self.n_taken % self.plan.groups
        n = len(self._picked)
        if n >= left:
            return left
        return n if n >= self.plan.least or is_last else 0

    def take(self, n: int, *, is_last: bool = False) -> list[Group]:
        """Remove the next `n` groups from the queue. With `is_last` the pass ends with them."""
        taken = [self._groups[index] for index in islice(self._picked, n)]
        for group in taken:
            del self._picked[group.index]
            group.staged &= ~self.bit
            group.taken |= self.bit
        self.n_taken += n
        if is_last:
            self.n_taken += -self.n_taken % self.plan.groups
        self.pick()
        return taken

    def pick(self) -> None:
        """Move groups from the heap to those that may be taken, in the order in which they will be."""
        heap, groups, picked, bit = self._heap, self._groups, self._picked, self.bit
        is_strict, most = self.plan.is_strict, self.plan.groups
        while heap and len(picked) < most:
            index = heap[0]
            group = groups.get(index)
            if group is None or not group.staged & bit or index in picked:
                heappop(heap)
            elif not is_strict or index < self._oldest() + self._window:
                picked[heappop(heap)] = None
            else:
                return

    def _oldest(self) -> int:
        """Return the index of the oldest group that the function has neither taken nor picked."""
        while (group := self._groups.get(self._anchor)) is None or self._is_chosen(group):
            self._anchor += 1
        return self._anchor

    def _is_chosen(self, group: Group) -> bool:
        # Groups that will be used again are not passed before their last use.
        marks = group.done if self.plan.reuse > 1 else group.taken | group.done
        return bool(marks & self.bit) or group.index in self._picked
