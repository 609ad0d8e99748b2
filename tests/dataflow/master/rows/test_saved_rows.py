"""Counts of rows that a save holds, and tables that go on from there: each training function uses each group once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.rows.saved import admit_again, n_taken, restore_rows, saved_rows
from softs_fast.dataflow.master.rows.table import RowTable

GROUPS, PER_STEP, N_STEPS = 2, 2, 12


def plan(window: int, ahead: int) -> FlowPlan:
    """Two training functions that read different columns, so that they choose different groups within the window."""
    made = [FunctionPlan(f"make_{name}", (), ("x",), (name,), 1, 1) for name in "ab"]
    train = [
        FunctionPlan(f"train_{name}", (0,), (name,), (), PER_STEP, PER_STEP, is_strict=True) for name in "ab"
    ]
    slots = (ahead + 1) * PER_STEP
    partition = PartitionPlan("train", PER_STEP, slots, ahead + -(-(window - 1) // PER_STEP))
    return FlowPlan((*made, *train), {"train": partition}, {"train": ("x",)}, GROUPS, window)


def test_a_group_that_one_of_two_functions_has_used_is_for_the_other_one_alone() -> None:
    table = RowTable(plan(window=3, ahead=1))
    ids = [table.admit("train", 0) for _ in range(4)]
    for column, order in (("a", (1, 2)), ("b", (0, 1))):
        for index in order:
            table.done(f"make_{column}", table.take_ids(f"make_{column}", ids[index]))
            table.wrote(ids[index], [column], 1)
        taken = table.take(f"train_{column}")
        assert taken.ids == (*ids[order[0]], *ids[order[1]])
        table.done(f"train_{column}", taken)
    saved, groups = saved_rows(table)
    assert [(group.first_id, group.used_by) for group, _ in groups] == [
        *((0, ("train_b",)), (4, ("train_a",)), (6, ()))
    ]
    again = RowTable(plan(window=3, ahead=1))
    restore_rows(again, saved)
    assert [admit_again(again, group, 0) for group, _ in groups] == [ids[0], ids[2], ids[3]]
    assert again.counts == table.counts
    for index in (0, 2, 3):
        for column in "ab":
            again.done(f"make_{column}", again.take_ids(f"make_{column}", ids[index]))
            again.wrote(ids[index], [column], 1)
    assert again.take("train_a").ids == (*ids[0], *ids[3])
    assert again.take("train_b").ids == (*ids[2], *ids[3])
    assert again.admit("train", 0) == (8, 9)


@pytest.mark.parametrize("seed", range(200))
def test_tables_that_go_on_from_saves_train_with_each_group_once(seed: int) -> None:
    rng = random.Random(seed)
    ahead = rng.randint(1, 3)
    made = plan(rng.randint(1, ahead * PER_STEP), ahead)
    table, used = RowTable(made), Counter[tuple[str, int]]()
    saved, groups, kept, step = saved_rows(table)[0], [], used.copy(), 0
    while step < N_STEPS:
        act(table, rng, used, limit=(step + 1) * PER_STEP)
        if table.counts["train"].complete > step:
            step += 1
            assert {n_taken(table, f"train_{name}") for name in "ab"} == {step * PER_STEP}
            (saved, found), kept = saved_rows(table), used.copy()
            groups = [group for group, _ in found]
        elif not rng.randrange(60):
            # A death: what has been done since the save does not count.
            table, used = RowTable(made), kept.copy()
            restore_rows(table, saved)
            for group in groups:
                admit_again(table, group, 0)
    done = {row_id for _, row_id in used}
    assert set(used.values()) == {1}
    for name in "ab":
        assert len([row_id for one, row_id in used if one == name]) == N_STEPS * PER_STEP * GROUPS
    assert max(done) < (N_STEPS + ahead) * PER_STEP * GROUPS


def act(table: RowTable, rng: random.Random, used: Counter[tuple[str, int]], limit: int) -> None:
    """Do one thing that may happen next."""
    if table.room("train"):
        table.admit("train", 0)
    name = rng.choice("ab")
    if rng.randrange(2) and table.n_ready(f"make_{name}"):
        ready = [
            row_id for row_id in list(table._rows)[::GROUPS] if not table.lacking(row_id, f"make_{name}")
        ]
        groups = [table._rows[row_id].group for row_id in ready]
        bit = table._by_name[f"make_{name}"].bit
        own = [one for one in groups if one.staged & bit]
        ids = [row.id for row in rng.choice(own).rows]
        taken = table.take_ids(f"make_{name}", ids)
        table.wrote(ids, [name], 1, version=table.counts["train"].complete)
        table.done(f"make_{name}", taken)
    elif n_taken(table, f"train_{name}") < limit and table.next_size(f"train_{name}"):
        taken = table.take(f"train_{name}")
        assert taken.step == limit // PER_STEP - 1
        assert taken.ends_step
        used.update((name, row_id) for row_id in taken.ids)
        table.done(f"train_{name}", taken)
