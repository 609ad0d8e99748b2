"""Rows with their state in plain sets; every question is answered by a search of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan


@dataclass
class NaiveRow:
    """One row."""

    partition: str
    group: int
    columns: dict[str, set[int]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    uses: Counter[str] = field(default_factory=Counter)
    is_hit: bool = False
    is_held: bool = False
    without: set[str] = field(default_factory=set)

    def copy(self) -> NaiveRow:
        columns = {key: set(holders) for key, holders in self.columns.items()}
        marks = {key: set(value) for key, value in vars(self).items() if isinstance(value, set)}
        return replace(self, columns=columns, **marks)


class NaiveRows:
    """What `RowTable` does, without indexes."""

    def __init__(self, plan: FlowPlan) -> None:
        self.plan = plan
        self.rows: dict[int, NaiveRow] = {}
        self.admitted: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.complete = dict.fromkeys(plan.partitions, 0)
        self.taken: Counter[str] = Counter()
        self.through: Counter[str] = Counter()
        self.freed: list[int] = []
        self.next_id = 0
        # What a strict function has chosen stays chosen, in that order, up to one pass.
        self.picked: dict[str, list[int]] = {one.name: [] for one in plan.functions}

    def own(self, partition: str) -> list[FunctionPlan]:
        return [one for one in self.plan.functions if one.partition == partition]

    def members(self, row_id: int) -> list[int]:
        row = self.rows[row_id]
        return [i for i, one in self.rows.items() if (one.partition, one.group) == (row.partition, row.group)]

    def room(self, partition: str) -> int:
        plan = self.plan.partitions[partition]
        live = self.admitted[partition] - self.dropped[partition]
        return plan.slots - (live - self.complete[partition] * plan.groups_per_step)

    def admit(self, partition: str, holder: int) -> tuple[int, ...]:
        ids = tuple(range(self.next_id, self.next_id + self.plan.group))
        self.next_id += self.plan.group
        for row_id in ids:
            self.rows[row_id] = NaiveRow(partition, self.admitted[partition])
        self.admitted[partition] += 1
        self.wrote(ids, self.plan.source[partition], holder)
        return ids

    def wrote(self, ids: Iterable[int], columns: Iterable[str], holder: int) -> None:
        columns = list(columns)
        for row_id in ids:
            if row_id in self.rows:
                for column in columns:
                    self.rows[row_id].columns.setdefault(column, set()).add(holder)
                if self.plan.window > 1:
                    self.pick()  # groups are ready one after the other
        self.pick()

    def is_ready(self, function: FunctionPlan, group: list[int]) -> bool:
        rows = [self.rows[row_id] for row_id in group]
        return all(
            function.name not in row.taken | row.done
            and not row.is_held
            and (function.name in row.without or all(row.columns.get(key) for key in function.inputs))
            for row in rows
        )

    def groups(self, partition: str) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for row_id in sorted(self.rows):
            if self.rows[row_id].partition == partition:
                found.setdefault(self.rows[row_id].group, []).append(row_id)
        return [found[number] for number in sorted(found)]

    def pick(self) -> None:
        for function in self.plan.functions:
            groups = self.groups(function.partition)
            ready = [group[0] for group in groups if self.is_ready(function, group)]
            if not function.is_strict:
                self.picked[function.name] = ready
                continue
            picked = self.picked[function.name] = [one for one in self.picked[function.name] if one in ready]
            numbers = {group[0]: self.rows[group[0]].group for group in groups}
            limit = self.first_open(function, groups) + self.plan.window
            picked[:] = [one for one in picked if numbers[one] < limit]
            for first in ready:
                limit = self.first_open(function, groups) + self.plan.window
                if first not in picked and len(picked) < function.groups and numbers[first] < limit:
                    picked.append(first)

    def first_open(self, function: FunctionPlan, groups: list[list[int]]) -> int:
        """Return the number of the oldest group that a strict function has neither begun, nor picked.

        Groups that it uses several times count until it is through with them.
        """
        for first in (group[0] for group in groups):
            row = self.rows[first]
            passed = row.done if function.reuse > 1 else row.done | row.taken
            if function.name not in passed and first not in self.picked[function.name]:
                return row.group
        return 1 << 62

    def next(self, function: FunctionPlan) -> list[int]:
        picked = self.picked[function.name]
        again = [one for one in picked if function.name in self.rows[one].again]
        if again:
            return [row_id for first in again[: function.groups] for row_id in self.members(first)]
        left = function.groups - self.taken[function.name] % function.groups
        n = left if len(picked) >= left else len(picked) if len(picked) >= function.least else 0
        return [row_id for first in picked[:n] for row_id in self.members(first)]

    def take(self, function: FunctionPlan, ids: list[int]) -> None:
        if function.name not in self.rows[ids[0]].again:
            self.taken[function.name] += len(ids) // self.plan.group
        for row_id in ids:
            self.rows[row_id].taken.add(function.name)
        self.pick()

    def current(self, function: FunctionPlan, ids: list[int]) -> list[int]:
        return [
            i
            for i in ids
            if i in self.rows and function.name not in self.rows[i].stale | self.rows[i].without
        ]

    def done(self, function: FunctionPlan, ids: list[int]) -> None:
        names = {one.name for one in self.own(function.partition)}
        for first in self.firsts(ids):
            if first not in self.rows:
                continue
            members = self.members(first)
            is_stale = function.name in self.rows[first].stale
            for member in members:
                row = self.rows[member]
                row.taken.discard(function.name)
                row.uses[function.name] += not is_stale
                if is_stale:
                    row.stale.discard(function.name)
                    row.again.add(function.name)
                elif row.uses[function.name] >= function.reuse:
                    row.again.discard(function.name)
                    row.done.add(function.name)
            self.through[function.name] += function.name in self.rows[first].done
            if self.rows[first].done == names:
                for member in members:
                    del self.rows[member]
                    self.freed.append(member)
            elif self.rows[first].is_hit:
                self.make_again(first)
        self.count(function.partition)
        self.pick()

    def count(self, partition: str) -> None:
        least = min(self.through[one.name] for one in self.own(partition))
        n_complete = least // self.plan.partitions[partition].groups_per_step
        self.complete[partition] = max(self.complete[partition], n_complete)

    def firsts(self, ids: list[int]) -> list[int]:
        return [row_id for row_id in ids if row_id % self.plan.group == 0]

    def give_back(self, function: FunctionPlan, ids: list[int]) -> None:
        if function.is_strict:
            self.taken[function.name] -= len(ids) // self.plan.group
        for row_id in ids:
            if row_id in self.rows:
                row = self.rows[row_id]
                row.taken.discard(function.name)
                row.stale.discard(function.name)
                if not function.is_strict:
                    row.again.add(function.name)
        for first in self.firsts(ids):
            if first in self.rows:
                self.make_again(first, None if function.is_strict else function)
        self.pick()

    def is_trained(self, row_id: int) -> bool:
        strict, row = {one.name for one in self.plan.functions if one.is_strict}, self.rows[row_id]
        return bool((row.taken | row.done | {name for name, n in row.uses.items() if n}) & strict)

    def drop(self, row_id: int) -> None:
        members, row = self.members(row_id), self.rows[row_id]
        self.dropped[row.partition] += 1
        for name in row.done:
            self.through[name] -= 1
        for member in members:
            del self.rows[member]
            self.freed.append(member)
        self.pick()

    def lose(self, holder: int) -> list[int]:
        lacking = []
        for row_id in sorted(self.rows):
            row = self.rows[row_id]
            lost = {column for column, holders in row.columns.items() if holders == {holder}}
            for column in list(row.columns):
                row.columns[column].discard(holder)
                if not row.columns[column]:
                    del row.columns[column]
            if lost:
                lacking.append(row_id)
        for row_id in lacking:
            for member in self.members(row_id):
                self.rows[member].is_hit = True
        for first in self.firsts(sorted(self.rows)):
            if self.rows[first].is_hit:
                self.make_again(first)
        self.pick()
        return lacking

    def make_again(self, first: int, given_back: FunctionPlan | None = None) -> None:
        """Have functions run again, or others go without the group if a training function has used what they would make."""
        rows = [self.rows[member] for member in self.members(first)]
        row, own = rows[0], [one for one in self.own(rows[0].partition) if one.is_strict]
        used = [one for one in own if one.name in row.done or row.uses[one.name]]
        lost = self.lost(rows, given_back, used)
        if lost:
            self.go_without(rows, lost)
            if first not in self.rows:
                return
        is_held = bool(self.lost(rows, given_back, [one for one in own if one.name in row.taken]))
        makers = [
            *self.run_again([one.copy() for one in rows], given_back),
            *([given_back] if given_back is not None else []),
        ]
        for one in rows:
            one.is_held = is_held
            one.is_hit |= is_held or bool(makers)
        if is_held:
            for column in set().union(*(self.made_from(one) for one in makers)):
                for one in rows:
                    one.columns.pop(column, None)
            return
        for again in self.run_again(rows, given_back):
            self.through[again.name] -= 1

    def lost(
        self, rows: list[NaiveRow], given_back: FunctionPlan | None, readers: list[FunctionPlan]
    ) -> set[str]:
        """Return what some functions have read that is not there, or would be made again."""
        tried = [one.copy() for one in rows]
        self.run_again(tried, given_back)
        return {
            key for one in readers for key in one.inputs if not all(row.columns.get(key) for row in tried)
        }

    def made_from(self, function: FunctionPlan) -> set[str]:
        """Return what a function makes, and what is made from that."""
        found = set(function.outputs)
        for one in self.own(function.partition):
            if found & set(one.inputs) and one.outputs and not one.is_strict:
                found |= self.made_from(one)
        return found

    def go_without(self, rows: list[NaiveRow], lost: set[str]) -> None:
        for row in rows:
            for key in lost:
                row.columns.pop(key, None)
        lost = set(lost)
        own = self.own(rows[0].partition)
        for one in own:
            if one.name in rows[0].taken | rows[0].done or not set(one.inputs) & lost:
                continue
            lost |= set(one.outputs)
            if one.name not in rows[0].without:
                self.through[one.name] += not one.is_strict
                for row in rows:
                    row.without.add(one.name)
                    if not one.is_strict:
                        row.done.add(one.name)
        if rows[0].done == {one.name for one in own}:
            for member in [number for number, row in self.rows.items() if any(row is one for one in rows)]:
                del self.rows[member]
                self.freed.append(member)
        self.count(own[0].partition)

    def run_again(self, rows: list[NaiveRow], given_back: FunctionPlan | None) -> list[FunctionPlan]:
        """Have functions run again, one by one, as long as one that has yet to run lacks what they make."""
        own = self.own(rows[0].partition)
        if given_back is not None:
            self.void(rows, given_back)
        again: list[FunctionPlan] = []
        while True:
            settled = rows[0].done | rows[0].taken - rows[0].stale | rows[0].without
            wanted = {key for one in own if one.name not in settled for key in one.inputs}
            lacking = {key for key in wanted if not all(row.columns.get(key) for row in rows)}
            makers = [one for one in own if one.name in rows[0].done and set(one.outputs) & lacking]
            makers = [one for one in makers if not one.is_strict and one not in again]
            if not makers:
                return again
            for row in rows:
                row.done.discard(makers[0].name)
                row.again.add(makers[0].name)
            again.append(makers[0])
            self.void(rows, makers[0])

    def void(self, rows: list[NaiveRow], function: FunctionPlan) -> None:
        """What a function has made counts no more, nor does what was made from it."""
        for row in rows:
            for key in function.outputs:
                row.columns.pop(key, None)
            if function.name in row.taken:
                row.stale.add(function.name)
        for one in self.own(rows[0].partition):
            if set(one.inputs) & set(function.outputs) and one.outputs and not one.is_strict:
                self.void(rows, one)

    def take_freed(self) -> list[int]:
        freed, self.freed = self.freed, []
        return freed
