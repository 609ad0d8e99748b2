"""NaN and infinities that training reads or reports are counted and shown."""

from __future__ import annotations

import math

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.engine.not_finite import NotFinite
from softs_fast.dataflow.engine.results import CallResult


def test_the_first_is_said_and_whenever_they_have_doubled() -> None:
    counts = NotFinite()
    said = []
    for step in range(10):
        result = CallResult(
            "a.train", (0, 1), step, numbers={"loss": math.inf, "n": 1.0}, not_finite={"reward": 2}
        )
        said += counts.observe(result)
    assert [one for one in said if "reward" in one] == [
        f"a.train has trained with {n} rows that have a NaN or an infinity in column 'reward', the last in step {n // 2}"
        for n in (2, 4, 8, 16)
    ]
    assert [one for one in said if "loss" in one] == [
        f"a.train has reported 'loss' as NaN or infinite in {n} calls, the last in step {n}"
        for n in (1, 2, 4, 8)
    ]
    assert counts.counts == {"reward -> a.train": 20, "a.train -> loss": 10}


def test_rewards_that_are_no_numbers_are_in_steps_stats_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Actor(df.Role):
        def score(self, rows: df.Rows) -> dict[str, object]:
            return {"reward": [math.nan if x == 1 else 1.0 for x in rows["x"]], "image": rows["x"] / 0}

        def train(self, rows: df.Rows) -> dict[str, float]:
            return {"reward": sum(rows["reward"]) / len(rows)}

        def look(self, rows: df.Rows) -> None:
            """Reads what is not finite, and does not train."""

    actor = df.place(Actor, name="actor")
    calls = [
        df.call(actor.score, "x -> reward, image", rows=4),
        df.call(actor.look, "image", rows=4, interface=df.Interface.INFERENCE),
        df.call(actor.train, "x, reward", rows=4),
    ]
    with df.Flow(calls, source=({"x": torch.tensor(i)} for i in range(8))) as flow:
        steps = list(flow.steps())
        stats = flow.ask("stats")["not_finite"]
    assert [step.not_finite for step in steps] == [
        {"reward -> actor.train": 1, "actor.train -> reward": 1},
        {},
    ]
    assert stats == steps[0].not_finite
    assert [one.message.split(", the last")[0] for one in caplog.records] == [
        "actor.train has trained with 1 rows that have a NaN or an infinity in column 'reward'",
        "actor.train has reported 'reward' as NaN or infinite in 1 calls",
    ]
