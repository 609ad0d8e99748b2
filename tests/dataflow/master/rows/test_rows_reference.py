"""Rows and their holders against a table that searches all rows each time, over thousands of random histories."""

from __future__ import annotations

import random

import pytest
from naive_rows import NaiveRows
from seeds import noted

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.holdings import Frees, Holdings
from softs_fast.dataflow.master.rows.table import RowTable, Taken


def plan_of(choice: random.Random) -> FlowPlan:
    group, per_step = choice.choice([1, 2, 3]), choice.choice([2, 4])
    sizes = [choice.choice([1, 2, per_step]) for _ in range(3)]
    window = choice.choice([1, 1, 2, 3, 6])
    reuse, passes = choice.choice([1, 2, 3]) if window == 1 else 1, choice.choice([1, per_step])
    functions = (
        FunctionPlan("make", (0,), ("prompt",), ("text", "logp"), sizes[0], choice.randint(1, sizes[0])),
        FunctionPlan("score", (1,), ("text",), ("reward",), sizes[1], choice.randint(1, sizes[1])),
        FunctionPlan("train", (0,), ("text", "logp", "reward"), (), passes, passes, reuse, is_strict=True),
        FunctionPlan("log", (2,), ("reward",), (), sizes[2], sizes[2], choice.choice([1, 1, 2])),
        FunctionPlan("test", (2,), ("prompt",), (), 1, 1, partition="val"),
    )
    partitions = {
        "train": PartitionPlan("train", per_step, per_step * choice.randint(1, 3), 2),
        "val": PartitionPlan("val", 1, 2, 0),
    }
    return FlowPlan(functions, partitions, {"train": ("prompt",), "val": ("prompt",)}, group, window)


class Pair:
    """Both tables, the holders of values, and the calls that are open."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)
        self.plan = plan_of(self.choice)
        self.table, self.naive, self.held = RowTable(self.plan), NaiveRows(self.plan), Holdings()
        # Rows of which workers have memory, what has to be freed, and what was.
        self.memory: set[tuple[int, int]] = set()
        self.frees: list[Frees] = []
        self.gone: set[int] = set()
        self.n_places = 0
        self.open: list[tuple[FunctionPlan, Taken, list[int]]] = []
        self.n_left_out = 0
        # Before it rows gather.
        self.slow = self.choice.choice([None, *self.plan.functions])
        self.losses = self.choice.choice([0.1, 0.1, 0.5])

    def act(self) -> None:
        getattr(
            self, self.choice.choice(["admit", "admit", "take", "take", "end", "end", "end", "drop", "lose"])
        )()

    def admit(self) -> None:
        partition = self.choice.choice(["train", "train", "val"])
        room = self.naive.room(partition)
        assert self.table.room(partition) == room
        if room > 0:
            holder = self.choice.randrange(3)
            ids = self.table.admit(partition, n_bytes=5)
            assert ids == self.naive.admit(partition, holder)
            self.held.admit(ids)
            self.put(ids, self.plan.source[partition], holder)

    def put(self, ids: tuple[int, ...], columns: tuple[str, ...], holder: int) -> None:
        """A worker makes columns; places say which one it was."""
        places = {}
        for column in columns:
            self.n_places += len(ids)
            places[column] = [(holder, row_id, column, self.n_places) for row_id in ids]
        self.held.put(ids, places, holder)
        self.memory |= {(holder, row_id) for row_id in ids if columns}

    def take(self) -> None:
        function = self.choice.choice(self.plan.functions)
        if function is self.slow and self.choice.random() < 0.8:
            return
        expected = self.naive.next(function)
        assert self.table.next_size(function.name) == len(expected)
        if expected:
            taken = self.table.take(function.name)
            given = [row for row in expected if function.name not in self.naive.rows[row].without]
            assert list(taken.ids) == given
            uses = {self.naive.rows[row].uses[function.name] for row in expected}
            if function.reuse > 1:
                assert taken.use == max(uses)
                assert len(uses) == 1 or not function.is_strict, "a pass is used as a whole"
            self.naive.take(function, expected)
            self.n_left_out += len(expected) - len(given)
            if given:
                self.open.append((function, taken, expected))
                self.held.pin(taken.ids)
            else:
                self.table.done(function.name, taken)
                self.naive.done(function, expected)

    def end(self) -> None:
        if not self.open:
            return
        function, taken, ids = self.open.pop(self.choice.randrange(len(self.open)))
        self.frees.append(self.held.unpin(taken.ids))
        if self.choice.random() < 0.2:
            self.table.give_back(function.name, taken)
            self.naive.give_back(function, ids)
            return
        holder = self.choice.randrange(3)
        current = self.table.current(function.name, taken)
        assert list(current) == self.naive.current(function, ids)
        self.table.wrote(current, function.outputs, n_bytes=7)
        self.naive.wrote(list(current), function.outputs, holder)
        self.put(current, function.outputs, holder)
        late = [row_id for row_id in taken.ids if row_id not in current]
        self.memory |= {(holder, row_id) for row_id in late if row_id in self.held}
        assert self.held.note(holder, late) == self.by_worker(
            {(holder, i) for i in late if i not in self.held}
        )
        self.table.done(function.name, taken)
        self.naive.done(function, ids)

    def drop(self) -> None:
        rows = sorted(self.naive.rows)
        if rows and self.choice.random() < 0.3:
            row = self.choice.choice(rows)
            if self.naive.is_trained(row):
                with pytest.raises(ValueError, match=r"are dropped \(test\), but train has used them"):
                    self.table.drop([row], "test")
            else:
                assert self.table.drop([row], "test") == 1
                self.naive.drop(row)

    def lose(self) -> None:
        if self.choice.random() < self.losses:
            holder = self.choice.randrange(3)
            before = {row_id: set(row.columns) for row_id, row in self.naive.rows.items()}
            lost, size = self.held.lose(holder), self.plan.group
            self.memory = {one for one in self.memory if one[0] != holder}
            self.table.lose(lost)
            lacking = self.naive.lose(holder)
            assert lacking == [i for i in sorted(before) if before[i] & {*lost.get(i // size * size, ())}]
            # The source reads its rows again.
            again = [
                row
                for row in lacking
                if row in self.naive.rows and not self.naive.rows[row].columns.get("prompt")
            ]
            self.table.wrote(again, ("prompt",))
            self.naive.wrote(again, ("prompt",), 0)
            self.put(tuple(again), ("prompt",), 0)

    def compare(self) -> None:
        assert len(self.table) == len(self.naive.rows)
        freed = self.table.freed()
        assert sorted(freed) == sorted(self.naive.take_freed())
        self.compare_frees(freed)
        for name in self.plan.partitions:
            assert self.table.counts[name].complete == self.naive.complete[name]
        for name, picked in self.naive.picked.items():
            assert self.table.n_ready(name) == len(picked) * self.plan.group

    def compare_frees(self, freed: list[int]) -> None:
        """Each worker that has memory of a row is told once, when the row has gone and no call reads it."""
        self.frees.append(self.held.drop(freed))
        self.gone.update(freed)
        read = {row_id for _, taken, _ in self.open for row_id in taken.ids}
        ended = {one for one in self.memory if one[1] in self.gone - read}
        told = [(worker, i) for frees in self.frees for worker, ids in frees.items() for i in ids]
        assert sorted(told) == sorted(ended)
        assert not any(row_id in self.held for row_id in self.gone - read)
        self.memory -= ended
        self.gone &= read
        self.frees = []

    @staticmethod
    def by_worker(pairs: set[tuple[int, int]]) -> Frees:
        frees: Frees = {}
        for worker, row_id in sorted(pairs):
            frees.setdefault(worker, []).append(row_id)
        return frees

    def compare_holders(self) -> None:
        for row_id, row in self.naive.rows.items():
            assert {*self.held.columns(row_id)} >= row.columns.keys()
            for column, holders in row.columns.items():
                ((holder, of_row, of_column, _),) = self.held.places([row_id], column)
                assert ({holder}, of_row, of_column) == (holders, row_id, column)


def check(first: int, last: int) -> None:
    for seed in range(first, last):
        pair = Pair(seed)
        with noted(seed):
            for number in range(150):
                pair.act()
                pair.compare()
                if number % 8 == 0:
                    pair.compare_holders()


def test_histories_of_rows() -> None:
    check(0, 100)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_histories_of_rows() -> None:
    check(0, 10_000)
