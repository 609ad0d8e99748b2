"""A small flow of three workers: it draws numbers, filters, trains, publishes, mixes, and takes notes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softs_fast.dataflow as df

ROWS = 8


class Model(df.Role):
    """A linear layer that training changes by what its rows say."""

    def setup(self, mesh: df.Mesh) -> None:
        self.name = mesh.name
        torch.manual_seed({"actor": 1, "gen": 2, "average": 3}.get(mesh.name, 4))
        self.net = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.random = torch.Generator().manual_seed(7)

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        n = rows.n_rows
        noise = torch.rand(n, 2, generator=self.random)
        for i in range(n):
            rows.tags[i]["made"] = int(rows.ids[i])
        texts = [b"x" * (i % 3) for i in range(n)]
        return {
            "y": self.net(rows["x"]) + noise,
            "text": texts,
            "parts": [[torch.ones(i % 2)] for i in range(n)],
        }

    def score(self, rows: df.Rows) -> dict[str, Tensor]:
        rows.drop([i for i in range(rows.n_rows) if rows.ids[i] % 7 == 3], "dull")
        assert [tags["made"] for tags in rows.tags] == list(rows.ids)
        return {"score": rows["y"].sum(dim=1)}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        loss = ((self.net(rows["x"]) - rows["y"]).sum(dim=1) * rows["extra"]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss, "bytes": sum(len(text) for text in rows["text"])}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": rows["y"].sum().item()}

    def evaluate(self) -> dict[str, float]:
        return {"weight": self.net.weight.sum().item()}

    def model_config(self) -> dict[str, str]:
        return {"name": self.name}


def extra(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"extra": rows["score"] * 0.5}


def note(role: Model) -> None:
    """A hook that changes weights where it runs."""
    with torch.no_grad():
        role.net.bias.mul_(0.9)


def numbers() -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(11)
    while True:
        yield {"x": torch.rand(3, generator=random)}


def make_flow(folder: str = "", n_workers: int = 3, **arguments: Any) -> df.Flow:
    """Return the flow; each worker is a number below `n_workers`."""
    actor = df.place(Model, name="actor")
    gen = df.place(Model, on=[1 % n_workers], follows=actor, name="gen")
    scorer = df.place(Model, on=[2 % n_workers], frozen=True, name="scorer")
    average = df.place(Model, on=[2 % n_workers], name="average")
    after = [
        df.publish(gen),
        df.param_realloc(actor, average, eta=0.25),
        df.evaluate(every=2),
        df.hook(note, on=[gen]),
    ]
    if folder:
        after.append(df.save(Path(folder), every=2))
    calls = [
        df.call(gen.generate, "x -> y, text, parts", rows=4, after=[df.hook(note)]),
        df.call(scorer.score, "y, text, parts -> score", rows=2),
        df.call(extra, "score -> extra", rows=ROWS),
        df.call(actor.train, "x, y, extra, text", rows=ROWS, after=after),
    ]
    return df.Flow(calls, source=numbers(), group=2, digests=True, **arguments)


def calls_of(steps: Iterable[df.FlowStep]) -> list[Any]:
    """Return what has to be the same bits however the workers run."""
    return [
        (
            step.number,
            step.dropped,
            sorted((call.function, call.ids, call.digest, call.numbers) for call in step.calls),
        )
        for step in steps
    ]


def summary(flow: df.Flow, n_steps: int) -> list[Any]:
    """Run, and return what has to be the same bits."""
    with flow:
        return calls_of(flow.steps(n_steps))


def die(*roles: Model) -> None:
    """A hook that ends its own process."""
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Model):
    """Ends its own process where it is told to."""

    place = ""

    def setup(self, mesh: df.Mesh) -> None:
        super().setup(mesh)
        if self.place == "setup":
            die()

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        if self.place == "main":
            die()
        return super().generate(rows)

    def evaluate(self) -> dict[str, float]:
        if self.place == "evaluate":
            die()
        return super().evaluate()


class Broken(Model):
    """Cannot be set up."""

    def setup(self, mesh: df.Mesh) -> None:
        raise OSError("no such model")


def make_mortal(place: str = "", **arguments: Any) -> df.Flow:
    """Return a flow of which worker 1 ends its process at a place: setup, main, hook or evaluate."""
    mortal = type("Mortal", (Mortal,), {"place": place})
    actor = df.place(Model, name="actor")
    gen = df.place(mortal, on=[1], follows=actor, name="gen")
    after = [df.hook(die)] if place == "hook" else [df.evaluate()]
    calls = [
        df.call(gen.generate, "x -> y, text, parts", rows=4, after=after),
        df.call(actor.read, "x, y, text, parts", rows=ROWS, interface=df.Interface.INFERENCE),
    ]
    return df.Flow(calls, source=numbers(), group=2, **arguments)


def make_broken() -> df.Flow:
    """Return a flow of which the only worker cannot be set up."""
    return df.Flow([df.call(df.place(Broken).train, "x", rows=2)], source=numbers())


class Light(df.Role):
    """Has no modules, so its process is quick to begin."""

    def double(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"] * 2}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": rows["y"].sum().item()}


def make_light() -> df.Flow:
    """Return a flow of two workers."""
    first, second = df.place(Light, name="first"), df.place(Light, on=[1], name="second")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(first.double, "x -> y", rows=2),
        df.call(second.read, "y", rows=4, interface=inference),
    ]
    return df.Flow(calls, source=numbers(), digests=True)
