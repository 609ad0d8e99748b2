"""Flows of which a role has parts of its weights on each worker: FSDP2, or tensor parallel with DTensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from parallel_flow import numbers
from torch import nn

import softs_fast.dataflow as df


class Sharded(df.Role):
    """Two layers."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        if mesh.device_mesh is not None and mesh.size("tp") > 1:
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.net, mesh.device_mesh["tp"], plan)
        if mesh.device_mesh is not None and mesh.size("dp") > 1:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.net, mesh=mesh.device_mesh["dp"])
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.02)

    def train(self, rows: df.Rows) -> dict[str, Any]:
        loss = (self.net(rows["x"]).sum(dim=1) - rows["x"][:, 0]).pow(2).mean()
        self.optimizer.zero_grad()
        (loss * rows.weight).backward()
        self.optimizer.step()
        return {"loss": loss.detach()}


def make_sharded(layout: str = "dp1", n_workers: int = 1, folder: str = "") -> df.Flow:
    """Return a flow that trains it, and saves each step."""
    model = df.place(Sharded, layout, on=range(n_workers), name="model")
    calls = [df.call(model.train, "x", rows=6, after=[df.save(Path(folder))])]
    return df.Flow(calls, source=numbers(), group=2)
