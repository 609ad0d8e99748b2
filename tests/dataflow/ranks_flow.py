"""Flows of roles on several workers that sum over ranks by their mesh, and draw random numbers wherever they can."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import softs_fast.dataflow as df


def number_of(tensors: Any) -> float:
    """Return a number that another bit of the tensors changes."""
    digest = hashlib.blake2b(digest_size=6)
    for one in tensors:
        digest.update(one.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return float(int.from_bytes(digest.digest()))


class Model(df.Role):
    """A net with dropout, of which ranks average the gradients."""

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        torch.manual_seed(3 * mesh.rank("dp") + ("actor", "gen", "slow").index(mesh.name))
        np.random.seed(mesh.rank("dp"))
        random.seed(f"{mesh.name} {mesh.rank('dp')}")
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 2))
        self.unused = nn.Linear(2, 2)
        mesh.broadcast(self.net)
        mesh.broadcast(self.unused)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.05)

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        noise = torch.rand(rows.n_rows, 2) + random.random() + float(np.random.rand())
        for place, padding in enumerate(rows.is_padding):
            rows.tags[place]["rank"] = -1 if padding else self.mesh.rank("dp")
        return {"y": self.net(rows["x"].nan_to_num()) + noise, "seen": [b"x" * (i % 4) for i in rows.ids]}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        own = torch.tensor([not padding for padding in rows.is_padding])
        losses = (self.net(rows["x"]) - rows["y"]).pow(2).mean(dim=1)
        loss = losses[own].mean() if own.any() else 0 * losses.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.mesh.average_gradients([*self.net.parameters(), *self.unused.parameters()], rows.weight)
        self.optimizer.step()
        total, n = self.mesh.all_reduce([losses[own].sum(), own.sum()])
        assert self.unused.weight.grad is None
        return {
            "loss": loss,
            "mean": total / n,
            "weights": number_of(self.net.parameters()),
            "drawn": torch.rand(()) + random.random(),
        }

    def evaluate(self) -> dict[str, float]:
        return {f"{self.mesh.name}_net": number_of(self.net.state_dict().values())}

    def model_config(self) -> dict[str, Any]:
        return {"size": self.mesh.size("dp"), "rank": self.mesh.rank("dp")}


def note(*roles: Model) -> None:
    """A hook that draws where it runs, and changes weights."""
    with torch.no_grad():
        for role in roles:
            role.net[0].bias += role.mesh.all_reduce(torch.rand(16), "mean")


def numbers(n: int | None) -> Iterator[dict[str, Tensor]]:
    """Yield rows."""
    random = torch.Generator().manual_seed(11)
    for _ in islice(iter(int, 1), n):
        yield {"x": torch.randn(3, generator=random)}


def make_flow(
    layout: str = "dp2",
    on: str = "",
    gen_layout: str = "",
    shift: int = 0,
    rows: int = 8,
    group: int = 2,
    uneven: str = "short",
    n: int = 0,
    folder: str = "",
    journal: str = "",
) -> df.Flow:
    """Return a flow that trains on some workers, and generates on others or the same.

    Args:
        layout: of the actor.
        on: its workers; empty: from 0 on.
        gen_layout: of the generator; empty: that of the actor.
        shift: the first worker of the generator.
        rows: of each call.
        group: rows that stay together.
        uneven: of the training call.
        n: elements of the source; 0: without end.
        folder: for checkpoints.
        journal: for common saves.
    """
    gen_layout = gen_layout or layout
    workers = [int(one) for one in on.split()] or range(int(layout[2:]))
    actor = df.place(Model, layout, on=workers, name="actor")
    gen = df.place(Model, gen_layout, on=range(shift, shift + int(gen_layout[2:])), follows=actor, name="gen")
    slow = df.place(Model, on=[1], name="slow")
    after: list[Any] = [
        df.hook(note, on=[actor]),
        df.publish(gen),
        df.param_realloc(actor, slow, eta=0.25),
        df.evaluate(),
        df.evaluate(slow),
    ]
    if folder:
        after.append(df.save(Path(folder)))
    calls = [
        df.call(gen.generate, "x -> y, seen", rows=rows, after=[df.evaluate()]),
        df.call(actor.train, "x, y, seen", rows=rows, uneven=uneven, after=after),  # type: ignore[arg-type]
    ]
    return df.Flow(calls, source=numbers(n or None), group=group, digests=True, journal=journal or None)
