"""Edges from columns, numbers of rows: what can never run is refused, with names and numbers."""

from __future__ import annotations

from itertools import product

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.capacity import plan_of
from softs_fast.dataflow.declare.graph import graph_of
from softs_fast.dataflow.declare.plan import FlowPlan
from softs_fast.errors import ConfigError


class Model(df.Role):
    """Has some functions."""

    def run(self, rows: df.Rows) -> None: ...

    def train(self, rows: df.Rows) -> None: ...


def fn(name: str, columns: str, rows: int = 4, **arguments: object) -> df.MFCDef:
    role = df.place(Model, name=f"role_{name}")
    function = role.run if "->" in columns else role.train
    return df.call(function, columns, rows=rows, name=name, **arguments)  # type: ignore[arg-type]


def plan(*calls: df.MFCDef, source: tuple[str, ...] = ("x",), **numbers: int) -> FlowPlan:
    order, read = graph_of(calls, {"train": source})
    return plan_of(order, read, **numbers)


def test_functions_are_ordered_by_their_columns() -> None:
    calls = [fn("c", "a, b"), fn("b", "a -> b"), fn("a", "x -> a")]
    order, read = graph_of(calls, {"train": ["x", "not read"]})
    assert [one.name for one in order] == ["a", "b", "c"]
    assert read == {"train": ("x",)}


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        ([], "no functions"),
        ([fn("a", "x"), fn("a", "x")], "1 names have several functions: a"),
        ([fn("a", "x -> y"), fn("b", "x -> y"), fn("c", "y")], "column 'y' has two producers: a and b"),
        ([fn("a", "x -> x"), fn("c", "x")], "column 'x' has two producers: the source and a"),
        ([fn("a", "x, z")], "a reads z, which has no producer; there are: x"),
        ([fn("a", "x -> y, z"), fn("b", "y")], r"columns that no function reads: z \(of a\)"),
        (
            [fn("a", "x, r -> p"), fn("b", "p -> q"), fn("c", "q -> r"), fn("d", "r")],
            "wait for each other in a circle: a <- c <- b <- a",
        ),
        (
            [fn("a", "x -> y"), fn("b", "x, y", partition="val")],
            "partition 'val' of b has no source; it has train",
        ),
        (
            [
                fn("a", "x"),
                fn("b", "x -> y", uneven="drop"),
                fn("c", "y -> z"),
                fn("d", "z"),
                fn("e", "x, z"),
            ],
            'b: uneven="drop" drops rows at the end of the source that a may have trained with .* have a read y',
        ),
    ],
)
def test_graphs_that_are_refused(calls: list[df.MFCDef], complaint: str) -> None:
    if complaint.startswith("partition"):
        calls = [fn("t", "x"), calls[1]]
    with pytest.raises(ConfigError, match=complaint):
        graph_of(calls, {"train": ["x"]})


def test_a_rest_may_be_dropped_before_all_that_train() -> None:
    graph_of([fn("b", "x -> y", uneven="drop"), fn("c", "y -> z"), fn("d", "z")], {"train": ["x"]})
    graph_of([fn("a", "x"), fn("d", "x", uneven="drop")], {"train": ["x"]})


def test_a_partition_that_no_function_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="partitions that no function reads: val"):
        graph_of([fn("a", "x")], {"train": ["x"], "val": ["x"]})


def test_two_roles_of_one_name_are_refused() -> None:
    calls = [df.call(df.place(Model).run, "x -> y", rows=1), df.call(df.place(Model).train, "y", rows=1)]
    with pytest.raises(ConfigError, match="several roles are named model"):
        graph_of(calls, {"train": ["x"]})


def test_a_step_is_one_pass_of_the_largest_training_function() -> None:
    calls = [fn("a", "x -> y", 2), fn("b", "y", 8), fn("c", "y", 4)]
    assert plan(*calls, max_age=2).partitions["train"].groups_per_step == 8
    assert plan(*calls, max_age=2).partitions["train"].slots == 24
    assert plan(*calls, group=2, max_age=2).partitions["train"].slots == 12


@pytest.mark.parametrize(
    ("ahead", "window", "bound"), [(0, 1, 0), (1, 1, 1), (0, 2, 0), (0, 4, 0), (1, 4, 2), (1, 6, 3)]
)
def test_the_bound_of_the_age(ahead: int, window: int, bound: int) -> None:
    calls = [fn("a", "x -> y", 4), fn("b", "y", 4)]
    if window > (ahead + 1) * 4:
        with pytest.raises(ConfigError, match="window is"):
            plan(*calls, max_age=9, ahead=ahead, window=window)
        return
    assert plan(*calls, max_age=bound, ahead=ahead, window=window).partitions["train"].age_bound == bound
    if bound:
        with pytest.raises(ConfigError, match=f"rows could be {bound} steps old and max_age is {bound - 1}"):
            plan(*calls, max_age=bound - 1, ahead=ahead, window=window)


@pytest.mark.parametrize(
    ("max_age", "window", "ahead"), [(0, 4, 0), (1, 1, 1), (1, 4, 0), (2, 5, 1), (3, 6, 1), (4, 2, 3)]
)
def test_ahead_is_by_default_what_the_age_and_the_window_admit(max_age: int, window: int, ahead: int) -> None:
    found = plan(fn("a", "x -> y", 4), fn("b", "y", 4), max_age=max_age, window=window).partitions["train"]
    assert found.slots == (ahead + 1) * 4
    assert found.age_bound <= max_age


def test_a_window_that_is_refused_says_what_to_write() -> None:
    calls = [fn("a", "x -> y", 4), fn("b", "y", 4)]
    n_refused = 0
    for max_age, ahead, window in product(range(4), (None, 0, 1, 2, 3), range(1, 20)):
        numbers = {"max_age": max_age, "window": window} | ({} if ahead is None else {"ahead": ahead})
        try:
            plan(*calls, **numbers)
        except ConfigError as error:
            n_refused += 1
            for way in str(error).partition("; write ")[2].split(", or "):
                changed = dict(one.split("=") for one in way.split(", "))
                plan(*calls, **numbers | {name: int(value) for name, value in changed.items()})
    assert n_refused > 100


@pytest.mark.parametrize(
    ("calls", "numbers", "complaint"),
    [
        ([fn("a", "x", 6)], dict(group=4), "a: rows=6 does not hold whole groups of 4 rows"),
        ([fn("a", "x", 8, at_least=2)], dict(group=4), "at_least=2 does not hold whole groups"),
        ([fn("a", "x")], dict(group=0), "group is 0; need at least 1"),
        ([fn("a", "x")], dict(max_age=-1), "max_age is -1"),
        (
            [fn("a", "x -> y", 96), fn("b", "y", 256)],
            dict(),
            "step 0 can never end: a needs 288 rows by then, and 256 can have a slot",
        ),
        (
            [fn("a", "x -> y", 512), fn("b", "y", 256)],
            dict(),
            "a needs 512 rows by then, and 256 can have a slot",
        ),
        ([fn("a", "x", reuse=2)], dict(window=2, max_age=1), "a uses rows several times in their order"),
    ],
)
def test_numbers_that_can_never_fit(calls: list[df.MFCDef], numbers: dict[str, int], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan(*calls, **numbers)


def test_rows_that_do_not_divide_a_step_fit_with_slots_ahead() -> None:
    calls = [fn("a", "x -> y", 96), fn("b", "y -> z", 40), fn("c", "z", 256)]
    assert plan(*calls, max_age=1).partitions["train"].slots == 512
    streamed = [fn("a", "x -> y", 96, at_least=1), fn("b", "y -> z", 40, at_least=1), fn("c", "z", 256)]
    assert plan(*streamed).partitions["train"].slots == 256


def test_the_plan_does_not_depend_on_the_order_of_declaration() -> None:
    calls = [fn("a", "x -> y", 2), fn("b", "y -> z", 4), fn("c", "y, z", 8)]
    assert plan(*calls).functions == plan(*reversed(calls)).functions
