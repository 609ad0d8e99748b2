"""A flow of which a pool of replicas generates: what they make of a row depends on the row and the weights alone."""

from __future__ import annotations

import os
import signal
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from small_flow import numbers
from torch import nn

import softs_fast.dataflow as df

ROWS = 16
POOL = (1, 2, 3)


class Policy(df.Role):
    """A linear layer."""

    marks = Path()
    #: The replica that ends its own process within its first call: its worker; 0: none.
    dies = 0

    def setup(self, mesh: df.Mesh) -> None:
        self.name = mesh.name
        torch.manual_seed(1 if mesh.name == "actor" else 2)
        self.net = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def model_config(self) -> dict[str, str]:
        return {"name": self.name}

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        if self.dies and _worker() == self.dies and not (self.marks / "died").exists():
            (self.marks / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        noise = [torch.rand(2, generator=torch.Generator().manual_seed(i)) for i in rows.ids]
        maker = torch.full((rows.n_rows,), _worker())
        return {"y": self.net(rows["x"]) + torch.stack(noise), "maker": maker}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        loss = (self.net(rows["x"]) - rows["y"]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        made = {f"by {maker}": rows["maker"].eq(maker).sum() for maker in POOL}
        return {"loss": loss, "n": rows.n_rows, **made}


def _worker() -> int:
    """Return the number of the worker that this thread is; 0 in a flow in one process."""
    name = threading.current_thread().name
    return int(name.removeprefix("softs-flow-")) if name.startswith("softs-flow-") else 0


def make_pooled(
    marks: str = "",
    dies: int = 0,
    n_replicas: int = 3,
    max_age: int = 0,
    journal: str = "",
    n_rows: int | None = None,
    max_failed: int = 0,
) -> df.Flow:
    """Return the flow.

    Args:
        marks: Path of a folder for the note that a replica has died.
        dies: Worker of the replica that ends its own process within its first call; 0: none.
        n_replicas: Number of replicas of the pool.
        max_age: `max_age` of the flow.
        journal: Folder of the journal, which saves each step.
        n_rows: Number of rows of the source; None: it has no end.
        max_failed: `max_failed` of the flow.
    """
    policy = type("Policy", (Policy,), {"marks": Path(marks), "dies": dies})
    actor = df.place(policy, name="actor")
    gen = df.place(policy, pool=POOL[:n_replicas], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y, maker", rows=2),
        df.call(actor.train, "x, y, maker", rows=ROWS, after=[df.publish(gen)]),
    ]
    kept = df.Journal(journal, save_every=1) if journal else None
    source = islice(numbers(), n_rows and n_rows // 2)
    return df.Flow(calls, source=source, group=2, max_age=max_age, journal=kept, max_failed=max_failed)
