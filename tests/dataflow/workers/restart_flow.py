"""A flow of which two workers have no training state: a generator that follows, and a scorer that is frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flows import ROWS, Linear, extra, numbers
from torch import Tensor

import softs_fast.dataflow as df


class Model(Linear):
    """Notes the rows that it trains with, in a file beside that of its ends."""

    def setup(self, mesh: df.Mesh) -> None:
        super().setup(mesh)
        self.group = mesh.device_mesh["dp"].get_group() if mesh.device_mesh is not None else None
        if self.marks.is_file() and mesh.name == "gen":
            self.may_die("setup")

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        if min(rows.ids) >= ROWS:
            self.may_die("main")
        return super().generate(rows)

    @torch.no_grad()
    def score(self, rows: df.Rows) -> dict[str, Tensor]:
        return {"score": self.net(rows["x"]).sum(dim=1) + rows["y"].sum(dim=1)}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        if self.marks.name:
            with self.marks.with_suffix(".trained").open("a") as file:
                file.write(" ".join(map(str, rows.ids)) + "\n")
        loss = ((self.net(rows["x"]) - rows["y"]).sum(dim=1) * rows["extra"]).pow(2).mean()
        self.optimizer.zero_grad()
        (loss * rows.weight).backward()
        if torch.distributed.is_initialized():
            for parameter in self.net.parameters():
                torch.distributed.all_reduce(parameter.grad, group=self.group)
                parameter.grad /= 2
        self.optimizer.step()
        return {"loss": loss}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": rows["score"].sum().item()}

    def late(self, rows: df.Rows) -> None: ...

    @torch.no_grad()
    def weigh(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"], "sum": self.net.weight.sum()}


class Generator(Model):
    """Ends its process within the hook that brings weights, or one after it."""

    n_asked = 0

    def modules(self) -> dict[str, Any]:
        self.n_asked += 1
        # The first call looks at the tensors of a role that was just made.
        if self.n_asked > 1 and self.marks.name and self.marks.with_suffix(".trained").exists():
            self.may_die("hook")
        return super().modules()


def make_restarting(marks: str = "", place: str = "", max_age: int = 0, layout: str = "dp1") -> df.Flow:
    """Return the flow.

    Args:
        marks: Path of a file; what training has used is in a file beside it.
        place: Places at which the generator ends its process, each as often as it is named: setup, main, hook.
        max_age: `max_age` of the flow.
        layout: Layout of the role that trains, on worker 0, and 3 if it is "dp2".
    """
    inside = {"place": place, "marks": Path(marks)}
    model, generator = type("Model", (Model,), inside), type("Generator", (Generator,), inside)
    actor = df.place(model, layout, on=[0, 3] if layout == "dp2" else [0], name="actor")
    gen = df.place(generator, on=[1], follows=actor, name="gen")
    scorer = df.place(model, on=[2], frozen=True, name="scorer")
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(scorer.score, "x, y -> score", rows=2),
        df.call(extra, "score -> extra", rows=ROWS),
        df.call(actor.train, "x, y, extra", rows=ROWS, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=numbers(), group=2, max_age=max_age)


def trained(marks: Path) -> list[list[int]]:
    """Return the rows of each training call."""
    lines = marks.with_suffix(".trained").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]


def in_order(n_steps: int) -> list[list[int]]:
    """Return the rows of each training call of a flow that is not disturbed."""
    return [list(range(step * ROWS, (step + 1) * ROWS)) for step in range(n_steps)]
