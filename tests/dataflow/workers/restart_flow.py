"""A flow of which two workers have no training state: a generator that follows, and a scorer that is frozen."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from small_flow import numbers
from torch import Tensor, nn

import softs_fast.dataflow as df

ROWS = 8


class Model(df.Role):
    """A linear layer; what it makes of a row depends on its weights and the row alone."""

    #: Where worker 1 ends its own process, and the file that says how often it has; see `make_restarting`.
    place = ""
    marks = Path()

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(1 if mesh.name == "actor" else 2)
        self.net = nn.Linear(3, 2)
        self.group = mesh.device_mesh["dp"].get_group() if mesh.device_mesh is not None else None
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        if self.marks.is_file() and "setup" in self.place and mesh.name == "gen":
            self.die("setup")

    def die(self, place: str) -> None:
        """End this process, if that has not happened at this place as often as it should."""
        wanted = self.place.split().count(place)
        done = self.marks.read_text().split().count(place) if self.marks.is_file() else 0
        if done < wanted:
            with self.marks.open("a") as file:
                file.write(f"{place}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        if min(rows.ids) >= ROWS:
            self.die("main")
        noise = [torch.rand(2, generator=torch.Generator().manual_seed(int(i))) for i in rows.ids]
        return {"y": self.net(rows["x"]) + torch.stack(noise)}

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
            self.die("hook")
        return super().modules()


def extra(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"extra": rows["score"] * 0.5}


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


def losses(flow: df.Flow, n_steps: int) -> list[tuple[int, int, float]]:
    """Run a flow that is open; return number, rows and loss of each step."""
    return [(step.number, step.n_rows, step["actor.train"]["loss"]) for step in flow.steps(n_steps)]


def trained(marks: Path) -> list[list[int]]:
    """Return the rows of each training call."""
    lines = marks.with_suffix(".trained").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]
