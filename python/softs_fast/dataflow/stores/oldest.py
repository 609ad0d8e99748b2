"""Which groups are the oldest: those that suffice for the next step of the flow to end."""

from __future__ import annotations

from collections.abc import Iterable

from ..declare.calls import TRAIN
from ..declare.capacity import needs_of_steps
from ..declare.plan import FlowPlan
from ..rows.records import Group, Taken
from ..rows.table import RowTable
from .ledger import StoreLedger

__all__ = ["OldestGroups", "groups_that_suffice", "is_parted", "take_oldest"]


def groups_that_suffice(plan: FlowPlan) -> int:
    """Return so many groups of the training partition that any step can end with the oldest ones alone.

    They are more than those of a step where functions take more rows at a time.
    """
    per_step = plan.partitions[TRAIN].groups_per_step
    own = [one for one in plan.functions if one.partition == TRAIN]
    return max(
        max(wanted.values()) - step * per_step for step, wanted in enumerate(needs_of_steps(own, per_step))
    )


class OldestGroups:
    """Tells a ledger which rows are of the oldest groups of the training partition. Each group is looked at once.

    Args:
        table: of the flow.
        ledger: of its stores.
        n_groups: how many are meant.
        size: rows of a group.
    """

    def __init__(self, table: RowTable, ledger: StoreLedger, n_groups: int, size: int) -> None:
        self._table = table
        self._ledger = ledger
        self._n_rows = n_groups * size
        self._groups = table._groups[table._partitions[TRAIN]]
        self._next = 0
        for queue in table._own[table._partitions[TRAIN]]:
            queue.is_oldest = self._is_oldest

    def follow(self, gone: Iterable[int]) -> None:
        """Rows may have come since the last time, and these have gone from the table."""
        ledger = self._ledger
        ledger.demote(gone)
        while len(ledger.first) < self._n_rows and self._next < self._table.counts[TRAIN].admitted:
            group: Group | None = self._groups.get(self._next)
            self._next += 1
            if group is not None:
                ledger.promote(row.id for row in group.rows)

    def _is_oldest(self, group: Group) -> bool:
        return group.rows[0].id in self._ledger.first

    @property
    def is_lacking(self) -> bool:
        """Whether a group that is admitted now is of the oldest."""
        return len(self._ledger.first) < self._n_rows


def is_parted(table: RowTable, function: str, taken: Taken) -> bool:
    """Return whether only some rows of a call are of the oldest groups. If so, the next call has those alone."""
    queue = table._by_name[function]
    if queue.is_oldest is None or queue.plan.is_strict:
        return False
    there = [queue.is_oldest(one) for one in taken.groups if one.index in table._groups[one.partition]]
    queue.has_to_part = any(there) and not all(there)
    return queue.has_to_part


def take_oldest(table: RowTable, function: str) -> bool:
    """Return whether a function could take rows of the oldest groups. If so, its next call has those alone."""
    queue = table._by_name[function]
    is_oldest, groups = queue.is_oldest, table._groups[queue.partition]
    if is_oldest is None or queue.plan.is_strict:
        return False
    ready = (one for one in groups.values() if one.staged & queue.bit)
    queue.has_to_part = any(is_oldest(one) for one in ready)
    return queue.has_to_part
