"""Small flows that tests of many folders start: sources, roles, functions and hooks; runs that are compared; ends of processes."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from waiting import WATCHDOG_S

import softs_fast.dataflow as df

ROWS = 8


# Sources


def numbers(n: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield random vectors of three numbers, the same for each flow.

    Args:
        n: Number of rows; None: there is no end.
    """
    random = torch.Generator().manual_seed(11)
    for _ in count() if n is None else range(n):
        yield {"x": torch.rand(3, generator=random)}


def counted() -> Iterator[dict[str, Any]]:
    """Yield vectors of one number: 0, 1, ..."""
    for i in count():
        yield {"x": torch.tensor([float(i)])}


# What is asked of flows, and compared


def role_of(flow: df.Flow, name: str) -> df.Placement:
    """Return a role of a flow by its name."""
    return next(one for one in flow.declaration.roles if one.name == name)


def post(flow: df.Flow, *what: Any) -> df.PostedCall:
    """Post a function with rows, or a hook, by hand."""
    call = flow.post(*what)
    flow.flush(call)
    return call


def called(flow: df.Flow, *what: Any) -> df.CallResult:
    """Call a function with rows, or a hook, by hand."""
    return post(flow, *what).result(timeout_s=WATCHDOG_S)


def results_of(step: df.FlowStep) -> list[Any]:
    """Return all of the calls of a step that has to be the same bits."""
    return sorted((call.function, call.ids, call.digest, call.numbers) for call in step.calls)


def calls_of(steps: Iterable[df.FlowStep]) -> list[Any]:
    """Return what has to be the same bits however the workers run."""
    return [(step.number, step.dropped, results_of(step)) for step in steps]


def summary(flow: df.Flow, n_steps: int | None) -> list[Any]:
    """Run, and return what has to be the same bits."""
    with flow:
        return calls_of(flow.steps(n_steps))


def losses(flow: df.Flow, n_steps: int | None) -> list[tuple[int, int, float]]:
    """Run a flow that is open; return number, rows and loss of each step."""
    return [(step.number, step.n_rows, step["actor.train"]["loss"]) for step in flow.steps(n_steps)]


# Ends of processes


def die(*roles: df.Role) -> None:
    """A hook that ends its own process."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill(pid: int) -> None:
    """SIGKILL a process, and wait until it has ended; it need not be a child of this one."""
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        assert select.select([process], [], [], WATCHDOG_S)[0]
    finally:
        os.close(process)


# Roles


class Linear(df.Role):
    """A linear layer; what it makes of a row depends on its weights and the row alone."""

    #: Where it ends its own process, each place as often as it is named, and the file that says how often it has.
    place = ""
    marks = Path()

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        torch.manual_seed({"actor": 1, "gen": 2, "average": 3}.get(mesh.name, 4))
        self.net = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def may_die(self, place: str) -> None:
        """End this process, if that has not happened at this place as often as it should."""
        done = self.marks.read_text().split().count(place) if self.marks.is_file() else 0
        if done < self.place.split().count(place):
            if self.marks.name:
                with self.marks.open("a") as file:
                    file.write(f"{place}\n")
            die()

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        noise = [torch.rand(2, generator=torch.Generator().manual_seed(row_id)) for row_id in rows.ids]
        return {"y": self.net(rows["x"]) + torch.stack(noise)}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        return self.learn((self.net(rows["x"]) - rows["y"]).pow(2).mean())

    def learn(self, loss: Tensor) -> dict[str, Any]:
        """Make a step of training."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": rows["y"].sum().item()}

    def evaluate(self) -> dict[str, float]:
        return {"weight": self.net.weight.sum().item()}

    def model_config(self) -> dict[str, str]:
        return {"name": self.mesh.name}


class Model(Linear):
    """It draws from a generator, notes tags, drops rows, and makes texts and lists."""

    def setup(self, mesh: df.Mesh) -> None:
        super().setup(mesh)
        self.random = torch.Generator().manual_seed(7)
        self.may_die("setup")

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        self.may_die("main")
        n = rows.n_rows
        noise = torch.rand(n, 2, generator=self.random)
        for i in range(n):
            rows.tags[i]["made"] = int(rows.ids[i])
        return {
            "y": self.net(rows["x"]) + noise,
            "text": [b"x" * (i % 3) for i in range(n)],
            "parts": [[torch.ones(i % 2)] for i in range(n)],
        }

    def score(self, rows: df.Rows) -> dict[str, Tensor]:
        rows.drop([i for i in range(rows.n_rows) if rows.ids[i] % 7 == 3], "dull")
        assert [tags["made"] for tags in rows.tags] == list(rows.ids)
        return {"score": rows["y"].sum(dim=1)}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        loss = ((self.net(rows["x"]) - rows["y"]).sum(dim=1) * rows["extra"]).pow(2).mean()
        return {**self.learn(loss), "bytes": sum(len(text) for text in rows["text"])}

    def evaluate(self) -> dict[str, float]:
        self.may_die("evaluate")
        return super().evaluate()


class Light(df.Role):
    """Has no modules, so its process is quick to begin."""

    def double(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"] * 2}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": rows["y"].sum().item()}


class Broken(Linear):
    """Cannot be set up."""

    def setup(self, mesh: df.Mesh) -> None:
        raise OSError("no such model")


def extra(rows: df.Rows) -> dict[str, Any]:
    """A function without a role."""
    return {"extra": rows["score"] * 0.5}


def note(*roles: Linear) -> None:
    """A hook that changes weights where it runs."""
    with torch.no_grad():
        for role in roles:
            role.net.bias.mul_(0.9)


# Flows


def make_flow(folder: str = "", n_workers: int = 3, **arguments: Any) -> df.Flow:
    """Return a flow that draws numbers, filters, trains, publishes, mixes, and takes notes.

    Args:
        folder: Folder of checkpoints; empty: none are written.
        n_workers: Number of workers.
        arguments: Arguments of the flow.
    """
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


def make_mortal(place: str = "", **arguments: Any) -> df.Flow:
    """Return a flow of which worker 1 ends its process at a place: setup, main, hook or evaluate."""
    mortal = type("Mortal", (Model,), {"place": place})
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


def make_light() -> df.Flow:
    """Return a flow of two workers."""
    first, second = df.place(Light, name="first"), df.place(Light, on=[1], name="second")
    calls = [
        df.call(first.double, "x -> y", rows=2),
        df.call(second.read, "y", rows=4, interface=df.Interface.INFERENCE),
    ]
    return df.Flow(calls, source=numbers(), digests=True)
