"""A training function never gets rows that are older than the bound: the flow ends by name instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.master import Master, TooOld
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.errors import FlowError

BOUND = 2
TRAIN = FunctionPlan("train", (0,), ("x", "y"), (), 2, 2, is_strict=True)
MAKE = FunctionPlan("make", (0,), ("x",), ("y",), 2, 2)


def master_of(train: FunctionPlan = TRAIN, **partitions: PartitionPlan) -> Master:
    """A master of a function that makes a column, and of one that reads it; groups of one row."""
    partitions = {"train": PartitionPlan("train", 2, 8, BOUND), **partitions}
    plan = FlowPlan(
        (replace(MAKE, partition=train.partition), train), partitions, dict.fromkeys(partitions, ("x",))
    )
    return Master(plan, lambda function, taken: (Step(Kind.MAIN, frozenset({0}), function.name, 1.0),), [0])


def written(master: Master, partition: str, version: int) -> None:
    """Admit a step of rows, of which the column has been made by weights of a version."""
    ids = [*master.rows.admit(partition), *master.rows.admit(partition)]
    master.rows.wrote(ids, ("y",), version=version)


@pytest.mark.parametrize("step", [0, 3])
def test_rows_as_old_as_the_bound_are_trained_with_and_older_ones_never(step: int) -> None:
    for age in (0, BOUND, BOUND + 1):
        master = master_of()
        # The steps before, of rows that are not old.
        for number in range(step):
            written(master, "train", number)
            for function in ("make", "train"):
                master.rows.done(function, master.rows.take(function))
        written(master, "train", step - age)
        if age <= BOUND:
            master.advance(0.0)
            (call,) = [one for one in master.calls.values() if one.name == "train"]
            assert call.taken is not None
            assert (call.taken.step, call.taken.age) == (step, age)
            continue
        first = 2 * step
        complaint = rf"train got rows \({first}, {first + 1}\) that are 3 steps old; the bound is 2"
        with pytest.raises(TooOld, match=complaint):
            master.advance(0.0)


def test_the_age_of_rows_that_train_nothing_has_no_bound() -> None:
    functions = (
        (replace(TRAIN, is_strict=False), "train"),
        (replace(TRAIN, partition="val"), "val"),
    )
    for function, partition in functions:
        master = master_of(function, val=PartitionPlan("val", 2, 8, BOUND))
        written(master, partition, -100)
        master.advance(0.0)
        assert {one.name for one in master.calls.values()} == {"make", "train"}


class Model(df.Role):
    """Writes down which rows it has trained with."""

    trained: list[int]

    def setup(self, mesh: df.Mesh) -> None:
        self.net = torch.nn.Linear(1, 1)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"]}

    def train(self, rows: df.Rows) -> None:
        self.trained += rows.ids


def numbers() -> Iterator[dict[str, Any]]:
    while True:
        yield {"x": 0.0}


def test_a_flow_with_such_rows_ends_and_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = type("Model", (Model,), {"trained": []})
    actor = df.place(model, name="actor")
    gen = df.place(model, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(actor.train, "y", rows=4, after=[df.publish(gen)]),
    ]
    with df.Flow(calls, source=numbers(), max_age=1) as flow:
        list(flow.steps(2))
        monkeypatch.setattr(flow._session.runner._versions, "of", lambda role, worker: -9)
        complaint = r"actor.train got rows \(\d+, .*\) that are \d+ steps old; the bound is 1"
        with pytest.raises(FlowError, match=complaint):
            list(flow.steps(9))
        trained = list(model.trained)
        monkeypatch.undo()
        # Its rows are in no call any more: a flow that went on would train without them.
        with pytest.raises(FlowError, match=complaint):
            next(flow.steps())
        assert model.trained == trained
