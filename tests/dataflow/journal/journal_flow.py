"""A flow with a journal, of roles with dropout, momentum, a schedule, and generators; and ways in which it is killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import parallel_flow
import torch
from torch import Tensor, nn

import softs_fast.dataflow as df

ROWS = 8
ROLES = ("actor", "critic", "gen", "average")


class Other:
    """Has a state, as schedules have."""

    def state_dict(self) -> dict[str, int]:
        may_die("other")
        return {"n": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"n": 1}


class Model(df.Role):
    """Draws from every kind of generator, so that a state that is not restored is seen in the weights."""

    def setup(self, mesh: df.Mesh) -> None:
        os.environ["JOURNAL_FLOW_ROLE"] = mesh.name
        torch.manual_seed({"actor": 1, "gen": 2, "average": 3}.get(mesh.name, 4))
        random.seed(5)
        np.random.seed(6)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.random = torch.Generator().manual_seed(7)
        self.plain = random.Random(8)
        self.numpy = np.random.default_rng(9)
        self.legacy = np.random.RandomState(10)
        self.other = Other()

    def modules(self) -> dict[str, Any]:
        may_die("save" if self.net[0].weight.grad is not None else "")
        return super().modules()

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        may_die("generate")
        noise = torch.rand(rows.n_rows, 2, generator=self.random) + self.plain.random() + self.numpy.random()
        return {"y": self.net(rows["x"]) + noise + self.legacy.rand()}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        may_die("train")
        loss = ((self.net(rows["x"]) - rows["y"] * rows["factor"][:, None]) ** 2).mean()
        self.optimizer.zero_grad()
        (loss * (1 + random.random() + np.random.rand())).backward()
        self.optimizer.step()
        self.schedule.step()
        return {"loss": loss}

    def look(self, rows: df.Rows) -> None:
        """A function without outputs that trains nothing."""


def factor(rows: df.Rows) -> dict[str, Tensor]:
    """A function without a role, which draws from the generator of the master's process."""
    return {"factor": torch.rand(rows.n_rows)}


def shrink(role: Model) -> None:
    """A hook."""
    may_die("hook")
    with torch.no_grad():
        role.net[0].bias.mul_(0.9)


class Numbers:
    """A source that knows its position."""

    def __init__(self) -> None:
        self.n = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            self.n += 1
            yield {"x": torch.rand(3, generator=torch.Generator().manual_seed(self.n))}

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


def numbers() -> Iterator[dict[str, Any]]:
    """A source that has to be skipped forward."""
    yield from Numbers()


def make_flow(
    folder: str = "",
    save_every: int = 2,
    has_state: bool = False,
    n_workers: int = 3,
    max_age: int = 0,
    max_starts: int = 3,
    dies: str = "",
    has_hooks: bool = True,
) -> df.Flow:
    """Return the flow.

    Args:
        folder: Folder of the journal.
        save_every: `save_every` of `df.Journal`.
        has_state: Whether the source has a state.
        n_workers: Number of workers.
        max_starts: `max_restarts` of `df.Journal`.
        max_age: `max_age` of `df.Flow`.
        dies: "PLACE N FOLDER": where a process ends itself, at the N-th time; see `may_die`.
        has_hooks: Whether hooks of the user's change weights; otherwise a save has none of the generator.
    """
    os.environ["JOURNAL_FLOW_DIES"] = dies
    actor = df.place(Model, name="actor")
    critic = df.place(Model, on=[1 % n_workers], name="critic")
    gen = df.place(Model, on=[2 % n_workers], follows=actor, name="gen")
    average = df.place(Model, on=[1 % n_workers], name="average")
    after = [
        df.param_realloc(actor, average, eta=0.25),
        df.hook(shrink),
        df.publish(gen),
        df.hook(shrink, on=[critic], every=3),
    ]
    if not has_hooks:
        after = [one for one in after if one.name != "shrink"]
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(factor, "y -> factor", rows=ROWS),
        df.call(actor.train, "x, y, factor", rows=ROWS, after=after),
        df.call(critic.train, "x, y, factor", rows=ROWS // 2),
    ]
    journal = df.Journal(folder, save_every, max_starts) if folder else None
    source = Numbers() if has_state else numbers()
    return df.Flow(calls, source=source, group=2, max_age=max_age, digests=True, journal=journal)


_n_times: dict[str, int] = {}


def may_die(place: str) -> None:
    """End this process with SIGKILL if it is this place's time; only once, whatever processes come after it.

    The time is counted in all processes that have this place; the file makes that those after the first go on.
    """
    wanted = os.environ.get("JOURNAL_FLOW_DIES", "")
    if not wanted or not place:
        return
    where, n, folder = wanted.split(" ", 2)
    if where != place or (place == "other" and os.environ.get("JOURNAL_FLOW_ROLE") != "gen"):
        return
    _n_times[place] = _n_times.get(place, 0) + 1
    if _n_times[place] >= int(n):
        with suppress(FileExistsError):
            os.close(os.open(Path(folder, f"died-{place}"), os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)


def weights_of(
    folder: Path, make: Callable[..., df.Flow] | None = None, **arguments: Any
) -> list[tuple[int, str, Tensor]]:
    """Return all that a journal holds of weights, with the number of its step."""
    with (make or make_flow)(str(folder), **arguments) as flow:
        step = flow.ask("stats")["steps"]
        return [
            (step, role.name, tensor.detach().clone())
            for role in flow.declaration.roles
            for tensor in flow.role(role).net.parameters()
        ]


def same(first: list[tuple[int, str, Tensor]], second: list[tuple[int, str, Tensor]]) -> bool:
    """Return whether two lists of weights have the same bits."""
    return len(first) == len(second) and all(
        one[:2] == other[:2] and torch.equal(one[2], other[2])
        for one, other in zip(first, second, strict=True)
    )


def run_master(make: Callable[[], df.Flow], n_steps: int, path: str) -> None:
    """Be a master; the numbers of the steps go to a file."""
    torch.set_num_threads(1)
    with make() as flow, open(path, "a") as file:
        for step in flow.steps(n_steps):
            file.write(f"{step.number} {step.repeated}\n")
            file.flush()


def make_ranks(folder: str) -> df.Flow:
    """Return a flow of which one role is on two workers, with a process group."""
    actor = df.place(parallel_flow.Model, "dp2", on=[0, 1], name="actor")
    gen = df.place(parallel_flow.Model, on=[1], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=ROWS),
        df.call(actor.train, "x, y", rows=ROWS, after=[df.publish(gen), df.evaluate()]),
    ]
    journal = df.Journal(folder, save_every=2)
    return df.Flow(calls, source=numbers(), group=2, digests=True, journal=journal)
