"""What the master reckons that stores hold: the same as stores do, whatever is put and freed."""

from __future__ import annotations

import random

import pytest

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.moves import DataManager
from softs_fast.dataflow.moves.extents import bytes_in_store
from softs_fast.dataflow.rows.table import RowTable
from softs_fast.dataflow.stores.ledger import StoreLedger
from softs_fast.dataflow.stores.oldest import OldestGroups, groups_that_suffice


@pytest.mark.parametrize("seed", range(5))
def test_a_ledger_has_the_bytes_of_a_store(seed: int) -> None:
    choice, ledger = random.Random(seed), StoreLedger()
    with DataManager(3) as store:
        for _ in range(200):
            ids = choice.sample(range(20), choice.randint(1, 6))
            if choice.random() < 0.6:
                values = [b"x" * choice.randint(0, 300) for _ in ids]
                column = choice.choice("abc")
                places = store.put(column, ids, values)
                sizes = [bytes_in_store(one) for one in places]
                assert sizes == [bytes_in_store(one) for one in values]
                ledger.put(3, column, ids, sizes)
            else:
                store.free(ids)
                ledger.free(3, ids)
            assert ledger.n_bytes[3] == store.n_bytes
            assert sum(ledger.by_column(3).values()) == store.n_bytes


def test_bytes_of_the_oldest_rows_are_counted_apart() -> None:
    ledger = StoreLedger()
    ledger.put(0, "x", [1, 2, 3], [10, 20, 40])
    ledger.put(1, "y", [1, 2], [1, 2])
    ledger.promote([1, 2])
    assert (ledger.of_first[0], ledger.of_first[1]) == (30, 3)
    ledger.put(0, "z", [2, 3], [100, 200])
    ledger.put(0, "x", [1], [15])  # made again
    assert (ledger.n_bytes[0], ledger.of_first[0]) == (375, 135)
    ledger.demote([1, 7])
    assert (ledger.of_first[0], ledger.of_first[1]) == (120, 2)
    ledger.free(0, [1, 2, 9])
    assert (ledger.n_bytes[0], ledger.of_first[0], len(ledger)) == (240, 0, 3)


def test_a_worker_that_is_lost_holds_nothing() -> None:
    ledger = StoreLedger()
    ledger.promote([1])
    ledger.put(0, "x", [1, 2], [10, 20])
    ledger.put(1, "y", [1], [5])
    ledger.lose(0)
    assert (ledger.n_bytes[0], ledger.of_first[0], ledger.n_bytes[1]) == (0, 0, 5)
    ledger.free(0, [1, 2])
    ledger.put(0, "x", [1], [10])
    assert (ledger.n_bytes[0], ledger.of_first[0]) == (10, 10)


def plan_of(*functions: tuple[int, int], slots: int = 12) -> FlowPlan:
    """A chain of functions by groups of a pass, and with how many a call begins; the last one trains on 4."""
    names = [f"c{i}" for i in range(len(functions) + 1)]
    chain = [
        FunctionPlan(f"f{i}", (0,), (names[i],), (names[i + 1],), *one) for i, one in enumerate(functions)
    ]
    chain.append(FunctionPlan("train", (0,), (names[-1],), (), 4, 4, is_strict=True))
    return FlowPlan(tuple(chain), {"train": PartitionPlan("train", 4, slots, 2)}, {"train": ("c0",)}, 2)


@pytest.mark.parametrize(
    ("functions", "n_groups"),
    [([(2, 2), (4, 4)], 4), ([(8, 8)], 8), ([(3, 3)], 6), ([(8, 1)], 4), ([(8, 3)], 6)],
)
def test_how_many_groups_suffice_for_a_step(functions: list[tuple[int, int]], n_groups: int) -> None:
    assert groups_that_suffice(plan_of(*functions)) == n_groups


def test_the_oldest_groups_are_those_that_are_there() -> None:
    table, ledger = RowTable(plan_of((2, 2))), StoreLedger()
    oldest = OldestGroups(table, ledger, 4, 2)
    for _ in range(3):
        table.admit("train", 0)
    oldest.follow(table.freed())
    assert ledger.first == set(range(6))
    assert oldest.is_lacking
    for _ in range(3):
        table.admit("train", 0)
    oldest.follow(table.freed())
    assert ledger.first == set(range(8))
    assert not oldest.is_lacking
    table.drop([2, 10], "dull")
    oldest.follow(table.freed())
    assert ledger.first == {0, 1, 4, 5, 6, 7, 8, 9}
    table.drop([0], "dull")
    oldest.follow(table.freed())
    assert ledger.first == {4, 5, 6, 7, 8, 9}
    assert oldest.is_lacking


def test_a_call_that_may_be_smaller_has_the_oldest_groups_alone() -> None:
    table, ledger = RowTable(plan_of((8, 1))), StoreLedger()
    oldest = OldestGroups(table, ledger, 4, 2)
    for _ in range(6):
        table.admit("train", 0)
    oldest.follow(())
    assert table.take("f0").ids == tuple(range(8))
    assert table.take("f0").ids == tuple(range(8, 12))
    assert not table.next_size("f0")
