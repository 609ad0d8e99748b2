"""Ready groups of one function, the oldest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from ...declare.plan import FunctionPlan
from .records import Group

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Chooses the groups of the next call of a function.

    The work for one group does not depend on how many there are, but for the logarithm in a heap.

    Args:
        plan: Plan of the function.
        number: Number of the function; its bit in the marks of groups.
        partition: Number of its partition.
        window: Number of groups, from the oldest on, among which a strict function chooses.
        groups: All groups of the partition by index; the mapping of the owner.
        columns: Number of each column, by name.
    """

    def __init__(
        self,
        plan: FunctionPlan,
        number: int,
        partition: int,
        window: int,
        groups: Mapping[int, Group],
        columns: Mapping[str, int],
    ) -> None:
        self.plan = plan
        self.number = number
        self.bit = 1 << number
        self.partition = partition
        #: Bits of the columns that the function reads, and that it makes.
        self.needs, self.makes = (
            sum(1 << columns[name] for name in names) for names in (plan.inputs, plan.outputs)
        )
        #: Uses of groups, taken so far; what exceeds a multiple of a pass belongs to the present one.
        self.n_taken = 0
        self._window = window
        self._groups = groups
        # Indexes of groups; those without the mark `staged` are skipped when they get to the front.
        self._heap: list[int] = []
        self._n_staged = 0
        # Groups that the function has begun before, and their number. They do not wait for a whole pass, and count in none.
        self._again: list[int] = []
        self._n_again = 0
        # Numbers of calls, counted from 1, those of calls that were given back, and of calls that were never begun.
        self._n_calls = 0
        self._numbers: list[int] = []
        self._unused: list[int] = []
        # Of a strict function: groups that were chosen within the window, in that order; the values mean nothing.
        self._chosen: dict[int, None] = {}
        self._anchor = 0

    def push(self, group: Group) -> None:
        """Add a group that has the inputs."""
        self._add(group)
        if group.index < self._anchor:
            self._return_to(group)
        self.choose()

    def put_back(self, groups: Sequence[Group]) -> None:
        """Add groups of a call that was not made, if they may be taken: all at once, so that none overtakes another one."""
        for group in groups:
            self._remove(group)
            self._return_to(group)
        for group in groups:
            if self.may_take(group):
                self._add(group)
        self.choose()

    def may_take(self, group: Group) -> bool:
        """Return whether a function has yet to use a group, and the group has the inputs, or it goes without them."""
        is_ready = group.have & self.needs == self.needs or bool(group.without & self.bit)
        return is_ready and not group.is_held and not (group.taken | group.done) & self.bit

    def discard(self, group: Group) -> None:
        """Remove a group that is dropped, is taken by its ids, or lacks an input again."""
        self._remove(group)
        self._return_to(group)
        self.choose()

    def _add(self, group: Group) -> None:
        if not group.staged & self.bit:
            group.staged |= self.bit
            if group.again & self.bit:
                self._n_again += 1
                heappush(self._again, group.index)
            else:
                self._n_staged += 1
                heappush(self._heap, group.index)

    def _remove(self, group: Group) -> None:
        if group.staged & self.bit:
            group.staged &= ~self.bit
            if group.again & self.bit:
                self._n_again -= 1
            else:
                self._n_staged -= 1
            self._chosen.pop(group.index, None)

    @property
    def n_ready(self) -> int:
        """How many groups may be taken; of a strict function, up to those of one pass."""
        return len(self._chosen) if self.plan.is_strict else self._n_staged + self._n_again

    def next_size(self, *, is_last: bool = False) -> int:
        """Return of how many groups the next call would be; 0 if too few are ready.

        Args:
            is_last: whether no more groups will ever be ready than those that are.
        """
        if self._n_again:
            return min(self._n_again, self.plan.groups)
        left = self.plan.groups - self.n_taken % self.plan.groups
        n = self.n_ready
        if n >= left:
            return left
        return n if n >= self.plan.least or is_last else 0

    def take(self, n: int, *, is_last: bool = False) -> list[Group]:
        """Remove the next `n` groups from the queue. With `is_last` the pass ends with them."""
        is_again = self._n_again > 0
        heap = self._again if is_again else self._heap
        taken: list[Group] = []
        while len(taken) < n:
            index = next(iter(self._chosen)) if self.plan.is_strict else heappop(heap)
            self._chosen.pop(index, None)
            group = self._groups.get(index)
            if group is not None and group.staged & self.bit and bool(group.again & self.bit) is is_again:
                group.staged &= ~self.bit
                group.taken |= self.bit
                taken.append(group)
                if self.plan.reuse > 1:
                    # It is not passed before its last use, and was while it was chosen.
                    self._anchor = min(self._anchor, index)
        if is_again:
            self._n_again -= len(taken)
            return taken
        self._n_staged -= len(taken)
        self.n_taken += len(taken)
        if is_last:
            self.n_taken += -self.n_taken % self.plan.groups
        self.choose()
        return taken

    def number_of_call(self, *, is_again: bool) -> tuple[int, bool]:
        """Return the number of a call, from 1, and whether it is that of a call that was given back.

        A call of groups that the function was through with is not counted: its number is -1.
        """
        if self._numbers and (is_again or self.plan.is_strict):
            return heappop(self._numbers), True
        if is_again:
            return -1, False
        if self._unused:
            return heappop(self._unused), False
        self._n_calls += 1
        return self._n_calls, False

    def give_back(self, number: int, n_counted: int, *, was_begun: bool = True) -> None:
        """A call was not made: its number, and its part of a pass, are for another one.

        Args:
            number: Number of the call.
            n_counted: Number of groups by which it has advanced the pass.
            was_begun: Whether parts of it may have run, so that the other one is its repetition.
        """
        if number > 0:
            heappush(self._numbers if was_begun else self._unused, number)
        self.n_taken -= n_counted

    def choose(self) -> None:
        """Choose groups for a strict function, as soon as they are ready and within the window."""
        if not self.plan.is_strict:
            return
        heap, chosen = self._heap, self._chosen
        while heap and len(chosen) < self.plan.groups:
            index = heap[0]
            group = self._groups.get(index)
            if group is None or not group.staged & self.bit or index in chosen:
                heappop(heap)
            elif index < self._oldest() + self._window:
                chosen[heappop(heap)] = None
            else:
                return

    def _return_to(self, group: Group) -> None:
        """A group may be older than those that were passed: it is used again, was given back, or lacks an input again.

        Then those that were chosen and would overtake it by more than the window are not chosen any more.
        """
        self._anchor = min(self._anchor, group.index)
        if not self.plan.is_strict or self._groups.get(group.index) is not group or self._is_passed(group):
            return
        limit = self._oldest() + self._window
        for index in [one for one in self._chosen if one >= limit]:
            del self._chosen[index]
            heappush(self._heap, index)

    def _oldest(self) -> int:
        """Return the index of the oldest group that the function has neither taken nor chosen."""
        while (group := self._groups.get(self._anchor)) is None or self._is_passed(group):
            self._anchor += 1
        return self._anchor

    def _is_passed(self, group: Group) -> bool:
        # Groups that will be used again are not passed before their last use.
        marks = group.done if self.plan.reuse > 1 else group.taken | group.done
        return bool(marks & self.bit) or group.index in self._chosen
