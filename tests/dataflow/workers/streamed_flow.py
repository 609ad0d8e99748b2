"""Flows of which training gets its rows in parts, or several times; their numbers are whole, so sums in any order are exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from waiting import eventually

import softs_fast.dataflow as df

GROUP, ROWS, LEAST = 2, 16, 4


class Model(df.Role):
    """One whole number, that training changes when a step ends."""

    #: Where the parts of a step are noted, which generation waits for; without a name nothing waits.
    parts = Path()

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh
        self.net = nn.ParameterList([nn.Parameter(torch.ones((), dtype=torch.float64))])
        self.total = torch.zeros((), dtype=torch.float64)

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        step, place = divmod(max(rows.ids), ROWS)
        if self.parts.name and place >= ROWS // 2:
            # The first part is trained with while the rest is not there.
            eventually(self.parts.with_suffix(f".{step}").exists, "a part of the step has been trained with")
        with torch.no_grad():
            return {"y": (rows["x"] * self.net[0]) % 101}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        if self.parts.name:
            self.parts.with_suffix(f".{min(rows.ids) // ROWS}").touch()
        self.total += self._sum(rows)
        if rows.ends_step:
            self._update()
        return {"weight": self.net[0], "ends": rows.ends_step, "n": rows.n_rows}

    def train_again(self, rows: df.Rows) -> dict[str, Any]:
        # The order of the uses counts.
        self.total = self.total * 2 + self._sum(rows) * (rows.use + 1)
        if rows.ends_step:
            self._update()
        return {"weight": self.net[0], "ends": rows.ends_step, "use": rows.use}

    def _sum(self, rows: df.Rows) -> Tensor:
        own = torch.tensor([not padding for padding in rows.is_padding])
        return (rows["x"] + rows["y"])[own].sum()

    def _update(self) -> None:
        with torch.no_grad():
            self.net[0].copy_((self.net[0] * 3 + self.mesh.all_reduce(self.total)) % 1009)
        self.total.zero_()


def numbers() -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(2)
    while True:
        yield {"x": torch.randint(1, 100, (), generator=random).double()}


def make_flow(kind: str, layout: str = "dp1", parts: str = "") -> df.Flow:
    """Return the flow.

    Args:
        kind: "streamed" or "reused".
        layout: Layout of the role that trains, on workers 0, 2, ...
        parts: Path of the files that training makes, one per step; generation waits for the first part of each step.
    """
    model = type("Model", (Model,), {"parts": Path(parts)})
    n_workers = int(layout[2:])
    actor = df.place(model, layout, on=range(0, 2 * n_workers, 2), name="actor")
    gen = df.place(model, on=[1], follows=actor, name="gen")
    after = [df.publish(gen)]
    if kind == "streamed":
        train = df.call(actor.train, "x, y", rows=ROWS, at_least=LEAST, after=after)
    else:
        train = df.call(actor.train_again, "x, y", rows=ROWS // 2, reuse=3, after=after)
    calls = [df.call(gen.generate, "x -> y", rows=GROUP), train]
    return df.Flow(calls, source=numbers(), group=GROUP, digests=True)
