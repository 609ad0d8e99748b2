"""A flow with `data_transfer` before and after its functions: one makes rows, one reads them, one trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from flows import ROWS, Linear, counted, kill
from torch import nn

import softs_fast.dataflow as df


class Model(Linear):
    """What it makes of a row depends on the row alone."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(3)
        if self.marks.name and mesh.name == "maker":
            self.marks.with_suffix(".pid").write_text(str(os.getpid()))
        self.net = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def make(self, rows: df.Rows) -> dict[str, Any]:
        x = rows["x"][:, 0] % 5
        seq = [torch.full((row_id % 3 + 1,), float(one)) for row_id, one in zip(rows.ids, x, strict=True)]
        return {"seq": seq, "logp": x / 2}

    def value(self, rows: df.Rows) -> dict[str, Any]:
        return {"value": torch.stack([one.sum() for one in rows.values_of("seq")])}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        if self.marks.name:
            with self.marks.open("a") as file:
                file.write(" ".join(map(str, rows.ids)) + "\n")
        wanted = rows["value"] + rows["logp"]
        return self.learn((self.net(rows["value"][:, None])[:, 0] - wanted).pow(2).mean())


def note(role: Model) -> None:
    """A hook before training that changes weights, so it must run once for each call; it may kill the maker."""
    with torch.no_grad():
        role.net.bias.add_(0.125)
    if role.marks.name and role.marks.with_suffix(".kill").exists():
        role.marks.with_suffix(".kill").unlink()
        kill(int(role.marks.with_suffix(".pid").read_text()))


def make_transfers(marks: str = "", layout: str = "dp1", moves: bool = True, **arguments: Any) -> df.Flow:
    """Return the flow.

    Args:
        marks: Path of a file with the rows of each training call.
        layout: Layout of the role that reads, on worker 2, and 3 if it is "dp2".
        moves: Whether its functions have `data_transfer` hooks.
        arguments: Arguments of the flow.
    """
    model = type("Model", (Model,), {"marks": Path(marks)})
    actor = df.place(model, name="actor")
    maker = df.place(model, on=[1], name="maker")
    critic = df.place(model, layout, on=[2, 3] if layout == "dp2" else [2], frozen=True, name="critic")
    before: list[df.MFCDef | Any] = [df.hook(note)] + ([df.data_transfer()] if moves else [])
    inference = df.Interface.INFERENCE
    calls = [
        df.call(
            maker.make,
            "x -> seq, logp",
            rows=4,
            interface=inference,
            after=[df.data_transfer(critic, "seq")] if moves else [],
        ),
        df.call(critic.value, "seq -> value", rows=4, before=[df.data_transfer()] if moves else []),
        df.call(actor.train, "value, logp", rows=ROWS, before=before),
    ]
    return df.Flow(calls, source=counted(), group=2, digests=True, **arguments)
