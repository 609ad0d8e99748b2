"""Where values of rows are: memory goes when rows have gone and no step reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from softs_fast.dataflow.engine.held import HeldRows


class Frees:
    """Notes what is freed."""

    def __init__(self) -> None:
        self.log: list[tuple[int, list[int]]] = []

    def free(self, worker: int, ids: Iterable[int]) -> None:
        self.log.append((worker, list(ids)))


@pytest.fixture
def frees() -> Frees:
    return Frees()


@pytest.fixture
def held(frees: Frees) -> HeldRows:
    backend: Any = frees
    rows = HeldRows(backend)
    rows.admit([1, 2])
    rows.write("x", [1, 2], ["a", "b"], -1)
    rows.write("y", [1, 2], ["c", "d"], 0)
    return rows


def test_places_are_those_of_the_last_that_has_made_them(held: HeldRows) -> None:
    held.write("y", [2], ["e"], 1)
    assert held.places([2, 1], "y") == ["e", "c"]
    assert held.columns(1) == ["x", "y"]
    assert held.columns(7) == []


def test_all_holders_free_a_row_that_has_gone(held: HeldRows, frees: Frees) -> None:
    held.note(1, [1])
    held.free([1])
    assert sorted(frees.log) == [(-1, [1]), (0, [1]), (1, [1])]
    assert held.columns(1) == []


def test_what_a_worker_held_is_gone_with_it(held: HeldRows, frees: Frees) -> None:
    held.write("z", [2], ["f"], 3)
    held.lose(0)
    assert [held.columns(row) for row in (1, 2)] == [["x"], ["x", "z"]]
    held.free([1, 2])
    assert sorted(frees.log) == [(-1, [1, 2]), (3, [2])]


def test_a_row_that_a_step_reads_keeps_its_memory(held: HeldRows, frees: Frees) -> None:
    held.keep([1, 2])
    held.keep([1])
    held.free([1, 2])
    assert frees.log == []
    held.release([1, 2])
    assert sorted(frees.log) == [(-1, [2]), (0, [2])]
    assert held.places([1], "x") == ["a"]
    held.release([1])
    assert sorted(frees.log)[-1] == (0, [2])
    assert len(frees.log) == 4


def test_what_arrives_late_is_freed_at_once(held: HeldRows, frees: Frees) -> None:
    held.free([1])
    frees.log.clear()
    held.write("z", [1, 2], ["f", "g"], 3)
    held.note(4, [1])
    assert frees.log == [(3, [1]), (4, [1])]
