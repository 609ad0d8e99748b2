"""Groups that a save holds: one that a training function has used is for the others alone."""

from __future__ import annotations

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.rows.saved import admit_again, restore_rows, saved_rows
from softs_fast.dataflow.master.rows.table import RowTable

GROUPS, PER_STEP = 2, 2


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
    ids = [table.admit("train") for _ in range(4)]
    for column, order in (("a", (1, 2)), ("b", (0, 1))):
        for index in order:
            table.done(f"make_{column}", table.take_ids(f"make_{column}", ids[index]))
            table.wrote(ids[index], [column])
        taken = table.take(f"train_{column}")
        assert taken.ids == (*ids[order[0]], *ids[order[1]])
        table.done(f"train_{column}", taken)
    saved, groups = saved_rows(table)
    assert [(group.first_id, group.used_by) for group, _ in groups] == [
        *((0, ("train_b",)), (4, ("train_a",)), (6, ()))
    ]
    again = RowTable(plan(window=3, ahead=1))
    restore_rows(again, saved)
    assert [admit_again(again, group) for group, _ in groups] == [ids[0], ids[2], ids[3]]
    assert again.counts == table.counts
    for index in (0, 2, 3):
        for column in "ab":
            again.done(f"make_{column}", again.take_ids(f"make_{column}", ids[index]))
            again.wrote(ids[index], [column])
    assert again.take("train_a").ids == (*ids[0], *ids[3])
    assert again.take("train_b").ids == (*ids[2], *ids[3])
    assert again.admit("train") == (8, 9)
