"""The work for a call does not depend on how many calls a step has, or wait: it is counted, not timed."""

from __future__ import annotations

import cProfile
import itertools
from collections.abc import Callable

import torch

import softs_fast.dataflow as df


class Small(df.Role):
    def generate(self, rows: df.Rows) -> dict[str, object]:
        return {"y": rows["x"]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        return {"n": float(rows.n_rows)}


def flow_of(n_rows: int) -> tuple[df.Flow, df.Placement]:
    role = df.place(Small)
    calls = [df.call(role.generate, "x -> y", rows=1), df.call(role.train, "y", rows=n_rows)]
    source = ({"x": torch.ones(1)} for _ in itertools.count())
    return df.Flow(calls, source=source, watchdog_s=None), role


def counted(run: Callable[[], object]) -> int:
    """How many functions a block calls."""
    profile = cProfile.Profile()
    profile.enable()
    run()
    profile.disable()
    return sum(one.callcount for one in profile.getstats())


def test_a_step_of_many_calls() -> None:
    def of_a_step(n_rows: int) -> float:
        flow, _ = flow_of(n_rows)
        with flow:
            steps = flow.steps(2)
            next(steps)
            return counted(lambda: next(steps)) / n_rows

    assert of_a_step(400) < 1.1 * of_a_step(40)


def test_many_posted_calls() -> None:
    def of_posts(n_rows: int) -> float:
        flow, role = flow_of(n_rows)
        with flow:
            ids = flow.fetch(n_rows)

            def run() -> None:
                posted = [flow.post(role.generate, [row_id]) for row_id in ids]
                flow.flush(*posted)
                for one in posted:
                    one.result()

            return counted(run) / n_rows

    assert of_posts(400) < 1.1 * of_posts(40)
