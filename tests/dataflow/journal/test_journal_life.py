"""A flow with a journal that is left between two steps, and opened again: by the same object, after others, after errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import softs_fast.dataflow as df


class Model(df.Role):
    """Adds a number that it draws, and notes what it has trained with."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.net.weight.zero_()

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"] + torch.rand(rows.n_rows)}

    @torch.no_grad()
    def train(self, rows: df.Rows) -> dict[str, Any]:
        self.net.weight += rows["y"].sum()
        return {"z": rows["y"], "sum": rows["y"].sum(), "first": rows["x"].min()}

    def log(self, rows: df.Rows) -> None:
        """Has no outputs, and trains nothing."""


def numbers() -> Iterator[dict[str, Any]]:
    for i in range(1000):
        yield {"x": torch.tensor(float(i))}


def test_steps_end_when_a_save_waits_for_a_step_that_is_not_yielded_yet(tmp_path: Path) -> None:
    """The last function completes two steps at once, so the save of the second one begins before the first is yielded."""
    gen, actor = df.place(Model, name="gen"), df.place(Model, name="actor")
    calls = [
        df.call(gen.generate, "x -> y", rows=2, interface=df.Interface.INFERENCE),
        df.call(actor.train, "x, y -> z", rows=2, interface=df.Interface.TRAIN_STEP),
        df.call(gen.log, "z", rows=4, interface=df.Interface.INFERENCE),
    ]
    flow = df.Flow(calls, source=numbers(), max_age=1, journal=df.Journal(tmp_path / "j", save_every=2))
    with flow:
        for number in (1, 2, 3, 4):
            assert [step.number for step in flow.steps(1)] == [number]
    with flow:
        assert flow.ask("stats")["steps"] == 4
