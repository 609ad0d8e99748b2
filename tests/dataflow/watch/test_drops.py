"""A flow of which all groups are dropped says so, with counts."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.watch.drops import DropWatch
from softs_fast.errors import FlowError


def test_it_is_said_after_ten_steps_of_groups_and_whenever_they_have_doubled() -> None:
    drops = DropWatch(4)
    said = [n for n in range(1000) if drops.observe(0, {"dull": n - n // 3, "long": n // 3})]
    assert said == [40, 80, 160, 320, 640]
    assert drops.observe(1, {"dull": 667, "long": 333}) is None
    assert drops.observe(1, {"dull": 667, "long": 372}) is None
    assert drops.observe(1, {"dull": 668, "long": 372}) == (
        "step 2 is not complete: 40 groups were dropped since step 1 (1 dull, 39 long), and a step needs 4; check the "
        "function that drops them, or give the flow other rows"
    )


def flow_of(numbers: Iterable[int], last: float, **options: object) -> df.Flow:
    class Actor(df.Role):
        def score(self, rows: df.Rows) -> dict[str, object]:
            rows.drop([i for i, x in enumerate(rows["x"]) if x > last], "no variance")
            return {"reward": rows["x"]}

        def train(self, rows: df.Rows) -> dict[str, float]:
            return {"n": rows.n_rows}

    actor = df.place(Actor, name="actor")
    calls = [
        df.call(actor.score, "x -> reward", rows=4),
        df.call(actor.train, "x, reward", rows=8),
    ]
    return df.Flow(calls, source=({"x": torch.tensor(float(i))} for i in numbers), **options)  # type: ignore[arg-type]


def test_the_last_groups_are_dropped_and_the_loop_over_steps_ends(caplog: pytest.LogCaptureFixture) -> None:
    with flow_of(range(24), 15) as flow:
        assert [step["actor.train"]["n"] for step in flow.steps(6)] == [8, 8]
    assert [one.message for one in caplog.records] == [
        "the source has ended, and no row is left to train with: 8 groups were dropped since step 2 (8 no variance)"
    ]


def test_all_groups_are_dropped_and_the_flow_says_so_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    with flow_of(range(400), -1) as flow:
        assert list(flow.steps()) == []
    counts = [one.message.split(" groups")[0].split(": ")[1] for one in caplog.records]
    assert counts == ["80", "160", "320", "400"]
    assert {one.levelno for one in caplog.records} == {logging.WARNING}
    with (
        flow_of(itertools.count(), -1, on_stall="abort") as flow,
        pytest.raises(FlowError, match=r"^step 1 is not complete: 80 groups were dropped since step 0"),
    ):
        next(flow.steps())
