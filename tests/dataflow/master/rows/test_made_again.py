"""Which functions run again when a holder is lost, and in which order rows are taken then."""

from __future__ import annotations

from dataclasses import replace

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.rows.records import Taken
from softs_fast.dataflow.master.rows.table import RowTable

MAKE = FunctionPlan("make", (1,), ("x",), ("y",), 2, 2)
SCORE = FunctionPlan("score", (2,), ("y",), ("z",), 2, 2)
LOG = FunctionPlan("log", (0,), ("z",), (), 2, 2)
TRAIN = FunctionPlan("train", (0,), ("y", "z"), (), 2, 2, is_strict=True)


def table(*functions: FunctionPlan, group: int = 1, slots: int = 8, window: int = 1) -> RowTable:
    partitions = {"train": PartitionPlan("train", 2, slots, 9)}
    return RowTable(FlowPlan(functions, partitions, {"train": ("x",)}, group, window))


def fill(rows: RowTable, n: int) -> None:
    for _ in range(n):
        rows.admit("train", n_bytes=3)


def run(rows: RowTable, function: FunctionPlan, *, version: int | None = None) -> Taken:
    """Run a function on what it would take."""
    taken = rows.take(function.name)
    rows.wrote(rows.current(function.name, taken), function.outputs, n_bytes=5, version=version)
    rows.done(function.name, taken)
    return taken


def lose(rows: RowTable, column: str) -> None:
    """Lose a column of all rows."""
    rows.lose(dict.fromkeys(rows._rows, (column,)))


def ready(rows: RowTable) -> dict[str, int]:
    return {one.name: rows.n_ready(one.name) for one in (MAKE, SCORE, TRAIN) if rows.n_ready(one.name)}


def test_functions_run_again_through_several_columns() -> None:
    rows = table(MAKE, SCORE, TRAIN)
    fill(rows, 2)
    run(rows, MAKE)
    run(rows, SCORE)
    assert ready(rows) == {"train": 2}
    assert rows.n_bytes == 2 * (3 + 5 + 5)
    lose(rows, "y")
    # What was scored was made from what is gone: it is void, though its holder lives.
    assert ready(rows) == {"make": 2}
    assert rows.lacking(0, "train") == ["y", "z"]
    assert rows.n_bytes == 2 * 3
    assert rows.n_made_again == 2
    run(rows, MAKE)
    assert ready(rows) == {"score": 2}
    run(rows, SCORE)
    run(rows, TRAIN)
    assert (len(rows), rows.n_bytes, rows.counts["train"].complete) == (0, 0, 1)


def test_rows_that_training_could_not_read_are_taken_before_younger_ones() -> None:
    rows = table(MAKE, SCORE, TRAIN)
    fill(rows, 4)
    for _ in range(2):
        run(rows, MAKE, version=0)
    for _ in range(2):
        run(rows, SCORE)
    training = rows.take("train")
    assert (training.ids, training.step, training.number) == ((0, 1), 0, 1)
    assert rows.n_ready("train") == 2
    lose(rows, "z")
    assert rows.n_ready("train") == 0
    assert run(rows, SCORE).ids == (2, 3)  # training has taken 0 and 1, and may have read them
    rows.give_back("train", training)
    assert rows.n_ready("train") == 0
    assert run(rows, SCORE).ids == (0, 1)
    again = rows.take("train")
    assert (again.ids, again.step, again.number, again.is_repeat) == ((0, 1), 0, 1, True)
    rows.done("train", again)
    last = rows.take("train")
    assert (last.ids, last.step, last.ends_step, last.number) == ((2, 3), 1, True, 2)


def test_rows_that_are_made_again_are_younger_and_keep_their_step() -> None:
    rows = table(MAKE, SCORE, TRAIN)
    fill(rows, 4)
    run(rows, MAKE, version=0)
    assert run(rows, MAKE, version=0).step == 1
    lose(rows, "y")
    again = run(rows, MAKE, version=1)
    assert (again.ids, again.step, again.number) == ((0, 1), 0, -1)
    assert [rows._rows[row].version for row in (0, 2)] == [1, 0]


CRITIC = replace(TRAIN, name="critic", inputs=("y",))


def test_what_a_training_function_has_used_is_not_made_again_and_others_go_without_it() -> None:
    rows = table(MAKE, SCORE, LOG, CRITIC, TRAIN)
    fill(rows, 4)
    for function in (MAKE, MAKE, SCORE, SCORE, LOG, CRITIC):
        run(rows, function)
    lose(rows, "y")
    # Of the first two groups the critic has used `y`; the other two are made again.
    assert (rows.n_left_out, rows.n_made_again) == (2, 2)
    assert ready(rows) == {"make": 2, "train": 2}
    taken = rows.take("train")
    assert (taken.ids, taken.number, len(taken.groups)) == ((), 0, 2)
    rows.done("train", taken)
    assert (len(rows), rows.counts["train"].complete) == (2, 1)
    for function in (MAKE, SCORE, LOG, CRITIC):
        run(rows, function)
    taken = run(rows, TRAIN)
    # The call of the step after is of its own groups, and the first one that is counted.
    assert (taken.ids, taken.step, taken.number, taken.ends_step) == ((2, 3), 1, 1, True)
    assert (len(rows), rows.n_bytes, rows.counts["train"].complete) == (0, 0, 2)


def test_a_training_call_that_is_open_decides_whether_columns_are_made_again() -> None:
    for is_read in (True, False):
        rows = table(MAKE, CRITIC, replace(TRAIN, inputs=("y",)))
        fill(rows, 2)
        run(rows, MAKE)
        taken = rows.take("critic")
        lose(rows, "y")
        # Whether the critic has read its rows is not known yet.
        assert rows.n_ready("make") == rows.n_ready("train") == 0
        assert rows.n_made_again == rows.n_left_out == 0
        if is_read:
            rows.done("critic", taken)
            assert (rows.n_made_again, rows.n_left_out) == (0, 2)
            assert (rows.n_ready("make"), rows.n_ready("train")) == (0, 2)
        else:
            rows.give_back("critic", taken)
            assert (rows.n_made_again, rows.n_left_out) == (2, 0)
            assert (rows.n_ready("make"), rows.n_ready("train")) == (2, 0)


def test_a_row_is_not_used_again_as_another_one() -> None:
    rows = table(MAKE, replace(TRAIN, inputs=("y",), reuse=2))
    fill(rows, 2)
    run(rows, MAKE)
    run(rows, TRAIN)
    lose(rows, "y")
    assert (rows.n_made_again, rows.n_left_out) == (0, 2)
    taken = rows.take("train")
    assert (taken.ids, taken.use) == ((), 1)
    rows.done("train", taken)
    assert (len(rows), rows.counts["train"].complete) == (0, 1)


def test_a_function_without_outputs_is_through_with_what_it_goes_without() -> None:
    rows = table(MAKE, replace(LOG, inputs=("y",)), CRITIC)
    fill(rows, 2)
    run(rows, MAKE)
    run(rows, CRITIC)
    lose(rows, "y")
    assert (len(rows), rows.counts["train"].complete, rows.n_left_out) == (0, 1, 2)
    assert rows.freed() == [0, 1]


def test_a_call_with_failed_hooks_makes_its_rows_again_and_what_was_made_from_them() -> None:
    rows = table(MAKE, SCORE, TRAIN)
    fill(rows, 2)
    making = rows.take("make")
    rows.wrote(making.ids, ("y",))
    run(rows, SCORE)
    rows.give_back("make", making)
    assert ready(rows) == {"make": 2}
    assert rows.lacking(0, "train") == ["y", "z"]
