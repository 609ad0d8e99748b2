"""Which rows are ready: groups, windows, uses, drops, tags, lost columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.rows.table import RowTable

MAKE = FunctionPlan("make", (0,), ("x",), ("y",), 2, 2)
TRAIN = FunctionPlan("train", (0,), ("y",), (), 2, 2, is_strict=True)


def table(*functions: FunctionPlan, group: int = 1, slots: int = 8, window: int = 1) -> RowTable:
    partitions = {"train": PartitionPlan("train", 2, slots, 9)}
    return RowTable(FlowPlan(functions, partitions, {"train": ("x",)}, group, window))


def fill(rows: RowTable, n: int) -> None:
    for _ in range(n):
        rows.admit("train", n_bytes=3)


def test_a_group_is_ready_when_all_its_rows_are() -> None:
    rows = table(MAKE, TRAIN, group=3)
    fill(rows, 2)
    taken = rows.take("make")
    assert taken.ids == (0, 1, 2, 3, 4, 5)
    rows.wrote([0, 1, 2], ("y",))
    assert rows.n_ready("train") == 3
    assert rows.lacking(5, "train") == ["y"]
    assert rows.missing("train") == {"y": 3}
    rows.wrote([3, 4, 5], ("y",))
    assert rows.n_ready("train") == 6


def test_rows_are_used_again_before_the_next_ones() -> None:
    rows = table(MAKE, replace(TRAIN, reuse=3))
    fill(rows, 4)
    for _ in range(2):
        taken = rows.take("make")
        rows.wrote(taken.ids, ("y",))
        rows.done("make", taken)
    uses = []
    for _ in range(6):
        taken = rows.take("train")
        uses.append((taken.ids, taken.use, taken.step, taken.ends_step))
        rows.done("train", taken)
    assert uses == [
        ((0, 1), 0, 0, False),
        ((0, 1), 1, 0, False),
        ((0, 1), 2, 0, True),
        ((2, 3), 0, 1, False),
        ((2, 3), 1, 1, False),
        ((2, 3), 2, 1, True),
    ]
    assert len(rows) == 0


def test_slots_are_refilled_after_a_drop_and_after_a_step() -> None:
    rows = table(MAKE, TRAIN, slots=2)
    fill(rows, 2)
    assert rows.room("train") == 0
    with pytest.raises(ValueError, match="no slot for a group of partition 'train': 2 are used"):
        rows.admit("train")
    assert rows.drop([0], "filtered") == 1
    assert (rows.room("train"), rows.freed(), 0 in rows, 1 in rows) == (1, [0], False, True)
    fill(rows, 1)
    made = rows.take("make")
    assert made.ids == (1, 2)
    rows.wrote(made.ids, ("y",), n_bytes=4)
    assert rows.n_bytes == 2 * (3 + 4)
    rows.done("make", made)
    trained = rows.take("train")
    assert rows.room("train") == 0
    with pytest.raises(ValueError, match="rows \\[1\\] are dropped \\(late\\), but train has used them"):
        rows.drop([1], "late")
    rows.done("train", trained)
    assert (rows.room("train"), len(rows), rows.n_bytes, rows.counts["train"].complete) == (2, 0, 0, 1)


def test_the_age_is_that_of_the_weights_that_made_the_rows() -> None:
    rows = table(MAKE, TRAIN)
    fill(rows, 8)
    ages = []
    for version in (0, 0, 2, 1):
        made = rows.take("make")
        rows.wrote(made.ids, ("y",), version=version)
        rows.done("make", made)
        taken = rows.take("train")
        ages.append(taken.age)
        rows.done("train", taken)
    assert ages == [0, 1, 0, 2]


def test_rows_that_are_named_must_be_whole_groups_and_ready() -> None:
    rows = table(MAKE, TRAIN, group=2)
    fill(rows, 3)
    with pytest.raises(ValueError, match="3 ids are not those of whole groups of 2 rows"):
        rows.take_ids("make", [0, 1, 2])
    with pytest.raises(ValueError, match=r"rows \[77\] are not in the flow; 1 of 1"):
        rows.take_ids("make", [77])
    with pytest.raises(ValueError, match=r"train: rows \[0, 1\] lack y"):
        rows.take_ids("train", [0, 1])
    taken = rows.take_ids("make", [2, 3])
    assert taken.ids == (2, 3)
    with pytest.raises(ValueError, match="were used by it"):
        rows.take_ids("make", [2, 3])
    rows.give_back("make", taken)
    assert rows.take("make").ids == (0, 1, 2, 3)


def test_tags_stay_with_the_master() -> None:
    rows = table(MAKE, TRAIN, group=2)
    assert rows.admit("train", tags=[{"length": 3}, {"length": 5}]) == (0, 1)
    rows.tags(0)["score"] = 0.5
    assert [rows.tags(i) for i in (0, 1)] == [{"length": 3, "score": 0.5}, {"length": 5}]
    with pytest.raises(ValueError, match="1 tags for 2 rows"):
        rows.admit("train", tags=[{}])


def test_a_call_that_was_not_begun_leaves_its_number() -> None:
    rows = table(replace(MAKE, groups=1, least=1), TRAIN)
    fill(rows, 4)
    first = rows.take_ids("make", [0])
    assert first.number == 1
    rows.give_back("make", first, was_begun=False)
    numbers = [(rows.take("make").number, rows.take("make").number)]
    assert numbers == [(1, 2)]


def test_columns_that_are_lost_are_made_again() -> None:
    rows = table(MAKE, TRAIN)
    fill(rows, 2)
    made = rows.take("make")
    rows.wrote(made.ids, ("y",))
    rows.done("make", made)
    rows.lose({1: ["y"], 7: ["y"]})
    assert (rows.n_ready("train"), rows.n_ready("make")) == (1, 1)
    assert (rows.is_hit(0), rows.is_hit(1)) == (False, True)
    again = rows.take("make", is_last=True)
    assert again.ids == (1,)
    rows.wrote(again.ids, ("y",))
    rows.done("make", again)
    assert rows.take("train").ids == (0, 1)
