"""What functions have made outlives a save: it is not made again, belongs together, and is never too old."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.rows.made import (
    Bound,
    MadeGroup,
    bound_of,
    is_recent,
    made_groups,
    restore_made,
)
from softs_fast.dataflow.master.rows.saved import SavedGroup, admit_again, n_taken, restore_rows, saved_rows
from softs_fast.dataflow.master.rows.table import RowTable, Taken

GROUP, PER_STEP, N_STEPS = 2, 2, 14


def plan(ahead: int, window: int = 1, rows: int = 1) -> FlowPlan:
    """A chain of two functions with a branch, one without outputs, and two that train."""

    def made(name: str, inputs: tuple[str, ...], *outputs: str) -> FunctionPlan:
        return FunctionPlan(name, (), inputs, outputs, rows, 1)

    def trains(name: str, *inputs: str) -> FunctionPlan:
        return FunctionPlan(name, (0,), inputs, (), PER_STEP, PER_STEP, is_strict=True)

    functions = (
        made("generate", ("x",), "seq", "logp"),
        made("score", ("seq",), "reward"),
        made("value", ("x",), "value"),
        made("look", ("reward",)),
        trains("actor", "seq", "logp", "reward"),
        trains("critic", "seq", "value"),
    )
    bound = ahead + -(-(window - 1) // PER_STEP)
    partition = PartitionPlan("train", PER_STEP, (ahead + 1) * PER_STEP, bound)
    return FlowPlan(functions, {"train": partition}, {"train": ("x",)}, GROUP, window)


def make(table: RowTable, function: str, ids: tuple[int, ...], version: int | None = None) -> None:
    """Have a function be through with rows."""
    taken = table.take_ids(function, ids)
    one = table._by_name[function].plan
    if one.outputs:
        table.wrote(ids, one.outputs, n_bytes=8 * len(one.outputs), version=version)
    table.done(function, taken)


def restored(
    table: RowTable, lost: frozenset[tuple[str, int]] = frozenset(), ahead: int = 3, window: int = 1
) -> RowTable:
    """Return a table that goes on from a save of another one, without some columns of some groups."""
    (saved, groups), made = saved_rows(table), {one.first_id: one for one in made_groups(table)}
    again = RowTable(plan(ahead, window))
    restore_rows(again, saved)
    for group, _ in groups:
        admit_again(again, group)
        if group.first_id in made:
            one = made[group.first_id]
            columns = {name: 8 for name in one.columns if (name, group.first_id) not in lost}
            restore_made(again, one, columns)
    return again


def ready(table: RowTable) -> dict[str, int]:
    return {one.name: table.n_ready(one.name) for one in table._plan.functions}


def test_what_is_made_is_ready_for_what_comes_next() -> None:
    table = RowTable(plan(3))
    first, second, third = (table.admit("train") for _ in range(3))
    make(table, "generate", first, version=0)
    make(table, "score", first)
    table.tags(first[1])["kept"] = True
    make(table, "generate", second, version=0)
    made = {one.first_id: one for one in made_groups(table)}
    assert made[first[0]].columns == ("logp", "reward", "seq")
    assert made[first[0]].done == ("generate", "score")
    assert made[first[0]].tags == ({}, {"kept": True})
    assert third[0] not in made
    again = restored(table)
    assert ready(again) == {"generate": 2, "score": 2, "value": 6, "look": 2, "actor": 2, "critic": 0}
    assert again.tags(first[1]) == {"kept": True}
    assert again.n_bytes == 2 * 24 + 2 * 16
    assert again.counts == table.counts
    assert not again.n_made_again


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ("seq", {"generate": 2}),  # and all that was made of it
        ("logp", {"generate": 2}),
        ("reward", {"score": 2, "critic": 2}),
        ("value", {"value": 2, "look": 2, "actor": 2}),
    ],
)
def test_what_is_damaged_is_made_again_with_what_was_made_of_it(lost: str, expected: dict[str, int]) -> None:
    table = RowTable(plan(3))
    ids = table.admit("train")
    for function in ("generate", "score", "value"):
        make(table, function, ids)
    again = restored(table, frozenset({(lost, ids[0])}))
    assert ready(again) == dict.fromkeys(ready(table), 0) | expected
    assert again.n_made_again > 0


def test_what_is_not_needed_any_more_is_not_made_again() -> None:
    table = RowTable(plan(3))
    groups = [table.admit("train") for _ in range(2)]
    for ids in groups:
        for function in ("generate", "score", "look"):
            make(table, function, ids)
    table.done("actor", table.take("actor"))
    # Only the critic is missing: it reads no rewards.
    lost = frozenset((name, ids[0]) for ids in groups for name in ("reward", "logp"))
    again = restored(table, lost)
    assert ready(again) == dict.fromkeys(ready(table), 0) | {"value": 4}


def test_a_version_is_that_of_the_save_and_a_row_that_would_be_too_old_is_known() -> None:
    table = RowTable(plan(1))
    groups = [table.admit("train") for _ in range(PER_STEP + 1)]
    for ids in groups:
        for function in ("generate", "score", "value", "look"):
            make(table, function, ids, version=0)
    for function in ("actor", "critic"):
        table.done(function, table.take(function))
    # One step is complete, and the group of the next one is of the weights before it.
    assert restored(table, ahead=1).counts["train"].complete == 1
    assert restored(table, ahead=1)._rows[groups[-1][0]].version == 0
    for n_before in range(8):
        # A group with two before it is trained with in the second step.
        for ahead, most in ((0, 2), (1, 4)):
            assert is_recent(plan(ahead), Bound(2, 1), 0, n_before) == (n_before < most)
        # One younger group may overtake it.
        assert is_recent(plan(1, window=2), Bound(1, 1), 0, n_before) == (n_before < 5)
        assert is_recent(plan(1), Bound(2, 2), 0, n_before) == (n_before < 3)
        assert is_recent(plan(1), bound_of(plan(1)), 0, n_before)


@dataclass
class Values:
    """What each value of a row was made of, by column: numbers that no two values share."""

    rng: random.Random
    next: int = 0
    of: dict[tuple[int, str], dict[str, int]] = field(default_factory=dict)
    n_made: Counter[tuple[str, int]] = field(default_factory=Counter)

    def make(self, table: RowTable, function: FunctionPlan, ids: tuple[int, ...]) -> None:
        for row_id in ids:
            origin = self.origin(function, row_id)
            self.n_made[function.name, row_id] += 1
            for column in function.outputs:
                self.next += 1
                self.of[row_id, column] = origin | {function.name: self.next}

    def origin(self, function: FunctionPlan, row_id: int) -> dict[str, int]:
        """Return of which calls the inputs of a function come, and check that they belong together."""
        found: dict[str, int] = {}
        for column in function.inputs:
            for name, number in self.of.get((row_id, column), {}).items():
                # Outputs of one call have neighbouring numbers.
                assert abs(found.setdefault(name, number) - number) < 2, (function.name, row_id, column)
        return found


@dataclass
class Saved:
    """A save: what the master has, and the values."""

    table: RowTable
    rows: tuple[object, list[tuple[SavedGroup, int]]]
    made: dict[int, MadeGroup]
    used: Counter[tuple[str, int]]
    left_out: set[tuple[str, int]]
    values: dict[tuple[int, str], dict[str, int]]


def test_tables_that_go_on_with_what_was_made() -> None:
    for seed in range(40):
        check(seed)


def check(seed: int) -> None:
    rng = random.Random(seed)
    ahead = rng.randint(1, 3)
    made = plan(ahead, rng.randint(1, ahead * PER_STEP))
    table, used, values, open_calls = RowTable(made), Counter[tuple[str, int]](), Values(rng), []
    step = 0
    left_out: set[tuple[str, int]] = set()
    saved = save(table, used, values, left_out)
    is_damaged = seed % 3 == 0
    while step < N_STEPS:
        left_out |= {
            (queue.plan.name, row_id)
            for queue in table._queues
            for group in table._groups[0].values()
            for row_id in group.ids
            if group.without & queue.bit
        }
        act(table, rng, used, values, open_calls, (step + 1) * PER_STEP)
        if table.counts["train"].complete > step:
            step += 1
            saved = save(table, used, values, left_out)
        elif not rng.randrange(80):
            # A death: what has been done since the save does not count, nor does what is open.
            before = Counter(values.n_made)
            table = go_on(saved, made, values, is_damaged=is_damaged)
            used, open_calls, left_out = saved.used.copy(), [], saved.left_out.copy()
            values.n_made = before
    assert set(used.values()) == {1}
    for name in ("actor", "critic"):
        found = {one for one in used | dict.fromkeys(left_out, 1) if one[0] == name}
        assert len(found) == N_STEPS * PER_STEP * GROUP
    assert not left_out & set(used)


def save(
    table: RowTable, used: Counter[tuple[str, int]], values: Values, left_out: set[tuple[str, int]]
) -> Saved:
    rows = saved_rows(table)
    made = {one.first_id: one for one in made_groups(table)}
    return Saved(table, rows, made, used.copy(), left_out.copy(), dict(values.of))


def go_on(saved: Saved, made: FlowPlan, values: Values, *, is_damaged: bool) -> RowTable:
    """Return a table that goes on from a save; values that are not in the save have gone."""
    table = RowTable(made)
    rows, groups = saved.rows
    restore_rows(table, rows)  # type: ignore[arg-type]
    values.of = {}
    values.n_made.clear()
    n_used = rows.partitions["train"].used  # type: ignore[attr-defined]
    for number, (group, first_id) in enumerate(groups):
        ids = admit_again(table, group)
        one = saved.made.get(first_id)
        if one is None:
            continue
        assert is_recent(
            made, bound_of(made), one.version, n_used + number
        )  # with the same options it always is
        columns = [name for name in one.columns if not is_damaged or values.rng.randrange(4)]
        for row_id in ids:
            for column in columns:
                values.of[row_id, column] = saved.values[row_id, column]
        restore_made(table, one, dict.fromkeys(columns, 8))
        if len(columns) == len(one.columns):
            # None of it is made again.
            values.n_made.update({(name, row_id): 10**6 for name in one.done for row_id in ids})
    return table


def act(
    table: RowTable,
    rng: random.Random,
    used: Counter[tuple[str, int]],
    values: Values,
    open_calls: list[tuple[FunctionPlan, Taken, bool]],
    limit: int,
) -> None:
    """Do one thing that may happen next."""
    if table.room("train") and rng.randrange(2):
        table.admit("train")
    function = rng.choice(table._plan.functions)
    if function.is_strict:
        if n_taken(table, function.name) < limit and table.next_size(function.name):
            taken = table.take(function.name)
            assert taken.step == limit // PER_STEP - 1
            assert taken.age <= table._plan.partitions["train"].age_bound
            for row_id in taken.ids:
                values.origin(function, row_id)
            used.update((function.name, row_id) for row_id in taken.ids)
            table.done(function.name, taken)
    elif table.next_size(function.name) and rng.randrange(2):
        taken = table.take(function.name)
        for row_id in taken.ids:
            assert values.n_made[function.name, row_id] < 10**6, "it was in the save"
        open_calls.append((function, taken, False))
    elif open_calls:
        # Its main part ends, and later its hooks.
        number = rng.randrange(len(open_calls))
        one, taken, has_written = open_calls.pop(number)
        if has_written:
            table.done(one.name, taken)
            return
        ids = table.current(one.name, taken)
        values.make(table, one, ids)
        if one.outputs:
            version = table.counts["train"].complete if one.name == "generate" else None
            table.wrote(ids, one.outputs, n_bytes=8, version=version)
        open_calls.append((one, taken, True))


def test_a_training_function_with_outputs_keeps_them_or_gets_the_rows_again() -> None:
    one = plan(3)
    functions = [
        replace(function, outputs=("loss",)) if function.name == "critic" else function
        for function in one.functions
    ]
    actor = replace(functions[4], inputs=("seq", "loss"))
    one = replace(one, functions=(*functions[:4], functions[5], actor))
    table = RowTable(one)
    groups = [table.admit("train") for _ in range(2)]
    for ids in groups:
        for function in ("generate", "value"):
            make(table, function, ids)
    taken = table.take("critic")
    table.wrote(taken.ids, ("loss",), n_bytes=8)
    table.done("critic", taken)
    (saved, found), made = saved_rows(table), {one.first_id: one for one in made_groups(table)}
    for lost, expected in (("", {"actor": 4}), ("loss", {"critic": 4})):
        again = RowTable(one)
        restore_rows(again, saved)
        for group, first_id in found:
            admit_again(again, group)
            columns = {name: 8 for name in made[first_id].columns if name != lost}
            restore_made(again, made[first_id], columns)
        strict = {name: n for name, n in ready(again).items() if name in ("actor", "critic") and n}
        assert strict == expected
