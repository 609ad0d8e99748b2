"""Flows that count how often each element of their source has been trained, in buffers that saves hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softs_fast.dataflow as df

N_ITEMS = 61


class Killed(KeyboardInterrupt):
    """Ends a run at once: no part of a flow handles it."""


class Counts(nn.Module):
    """How often each element was used."""

    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(N_ITEMS, dtype=torch.int64))
        self.weight = nn.Parameter(torch.zeros(1))


@dataclass
class Plan:
    """What is drawn for a flow.

    Attributes:
        calls_left: function calls until the run is killed; None: it is not.
        made: function and first row of each group that this run has made; the runs before it are left out.
    """

    seed: int
    group: int
    max_age: int
    ahead: int
    window: int
    rows: dict[str, int]
    reuse: dict[str, int]
    save_every: int
    drops: int
    calls_left: int | None = None
    made: list[tuple[str, int]] = field(default_factory=list)


def some_plan(seed: int) -> Plan:
    """Draw a plan that a flow accepts."""
    rng = random.Random(seed)
    group, ahead = rng.choice([1, 2]), rng.choice([0, 0, 1, 2])
    per_step = rng.choice([2, 4])
    reuse = {"first": rng.choice([1, 1, 3]), "second": rng.choice([1, 2])}
    window = rng.randint(1, per_step * ahead) if ahead and max(reuse.values()) == 1 else 1
    small = rng.choice([one for one in (1, 2, 4) if per_step % one == 0])
    rows = {"make": rng.choice([1, 2]) * group, "first": per_step * group, "second": small * group}
    extra = -(-(window - 1) // per_step)
    return Plan(
        seed, group, ahead + extra, ahead, window, rows, reuse, rng.randint(1, 3), rng.choice([0, 0, 7])
    )


def make_flow(plan: Plan, folder: Path | None) -> df.Flow:
    """Return a flow of three roles; two of them count what they train with."""

    def used() -> None:
        if plan.calls_left is not None:
            plan.calls_left -= 1
            if plan.calls_left < 0:
                raise Killed

    def note(function: str, rows: df.Rows) -> None:
        used()
        plan.made += [(f"maker.{function}", row_id) for row_id in rows.ids[:: plan.group]]

    class Maker(df.Role):
        def setup(self, mesh: df.Mesh) -> None:
            self.net = nn.Linear(1, 1)

        def make(self, rows: df.Rows) -> dict[str, Any]:
            note("make", rows)
            return {"made": rows["item"] * 2}

        def sieve(self, rows: df.Rows) -> dict[str, Any]:
            note("sieve", rows)
            if plan.drops:
                items = rows["item"].tolist()
                rows.drop([i for i, item in enumerate(items) if item % plan.drops == 3])
            return {"kept": rows["made"]}

    class Trainer(df.Role):
        def setup(self, mesh: df.Mesh) -> None:
            self.counts = Counts()

        def train(self, rows: df.Rows) -> dict[str, float]:
            used()
            assert torch.equal(rows["kept"], rows["item"] * 2)
            for item in rows["item"].tolist():
                self.counts.n[item] += 1
            used()
            return {"sum": float(self.counts.n.sum())}

    def items() -> Iterator[dict[str, Any]]:
        yield from ({"item": torch.tensor(i)} for i in range(N_ITEMS))

    maker, first, second = (
        df.place(Maker, name="maker"),
        df.place(Trainer, name="first"),
        df.place(Trainer, on=[1], name="second"),
    )
    calls = [
        df.call(maker.make, "item -> made", rows=plan.rows["make"]),
        df.call(maker.sieve, "item, made -> kept", rows=plan.group),
        df.call(first.train, "item, kept", rows=plan.rows["first"], reuse=plan.reuse["first"]),
        df.call(second.train, "item, kept", rows=plan.rows["second"], reuse=plan.reuse["second"]),
    ]
    journal = df.Journal(folder, save_every=plan.save_every) if folder is not None else None
    return df.Flow(
        calls,
        source=items(),
        group=plan.group,
        max_age=plan.max_age,
        ahead=plan.ahead,
        window=plan.window,
        journal=journal,
    )


def role(flow: df.Flow, name: str) -> df.Placement:
    """Return a role of a flow by its name."""
    return next(one for one in flow.declaration.roles if one.name == name)
