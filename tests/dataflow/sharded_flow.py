"""A flow of roles of DTensors in different layouts; its numbers are those of one process, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

import softs_fast.dataflow as df


class Model(df.Role):
    """Tensors that training changes item by item, so that the order of sums does not matter."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(3)
        self.net = nn.Module()
        for name, shape in (("rows", (7, 3)), ("columns", (3, 5)), ("large", (130, 129)), ("bias", (4,))):
            tensor: Any = torch.randint(-8, 8, shape).float()
            dim = {"rows": 0, "columns": 1, "large": 0}.get(name)
            if mesh.device_mesh is not None and mesh.size("tp") > 1 and dim is not None:
                dim = 1 - dim if mesh.name == "average" else dim
                tensor = distribute_tensor(tensor, mesh.device_mesh["tp"], [Shard(dim)])
            setattr(self.net, name, nn.Parameter(tensor))

    def whole(self) -> dict[str, Tensor]:
        """Return all tensors in full."""
        return {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for name, tensor in self.net.named_parameters()
        }

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        total = sum(tensor.sum() for tensor in self.whole().values())
        return {"y": rows["x"] * 0 + total}

    @torch.no_grad()
    def train(self, rows: df.Rows) -> dict[str, float]:
        for number, tensor in enumerate(self.net.parameters()):
            tensor.mul_(0.5).add_(number + 1)
        return {name: rows[name].mean().item() for name in ("y", "z", "mixed")}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        return {name: tensor.double().sum().item() for name, tensor in self.whole().items()}


def numbers() -> Iterator[dict[str, Any]]:
    while True:
        yield {"x": torch.ones(())}


def make_sharded() -> df.Flow:
    """Return a flow of four workers."""
    actor = df.place(Model, "tp2", on=[0, 1], name="actor")
    gen = df.place(Model, "dp2", on=[2, 3], follows=actor, name="gen")
    alone = df.place(Model, "tp1", on=[1], follows=actor, name="alone")
    average = df.place(Model, "dp2 tp2", on=[2, 3, 0, 1], name="average")
    after = [df.publish(gen, alone), df.param_realloc(actor, average, eta=0.25), df.evaluate()]
    inference = df.Interface.INFERENCE
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(alone.generate, "x -> y as z", rows=4),
        df.call(average.generate, "x, z -> y as mixed", rows=8, interface=inference, after=[df.evaluate()]),
        df.call(actor.train, "y, z, mixed", rows=8, after=after),
    ]
    return df.Flow(calls, source=numbers(), digests=True)
