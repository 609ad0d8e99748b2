"""Flows of which roles are on several workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from flows import Linear, die, note, numbers
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import softs_fast.dataflow as df


class Model(Linear):
    """Gradients are averaged over dp ranks where there are several."""

    def setup(self, mesh: df.Mesh) -> None:
        super().setup(mesh)
        self.module: Any = self.net
        if mesh.device_mesh is not None:
            self.module = DistributedDataParallel(self.net, process_group=mesh.device_mesh["dp"].get_group())

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        for place, padding in enumerate(rows.is_padding):
            rows.tags[place]["rank"] = -1 if padding else self.mesh.rank("dp")
        return {"y": rows["x"].sum(dim=1) + rows["x"][:, 0]}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        own = torch.tensor([not padding for padding in rows.is_padding])
        errors = (self.module(rows["x"]).sum(dim=1) - rows["y"]).pow(2)
        loss = errors[own].mean() if own.any() else 0 * errors.sum()
        self.learn(loss * rows.weight)
        return {"loss": loss, "sum": self.net.weight.sum()}

    def evaluate(self) -> dict[str, float]:
        return {**super().evaluate(), "rank": float(self.mesh.rank("dp"))}

    def model_config(self) -> dict[str, Any]:
        mesh = self.mesh.device_mesh
        return {
            "sizes": dict(self.mesh.sizes),
            "ranks": dict(self.mesh.ranks),
            "names": None if mesh is None else list(mesh.mesh_dim_names),
            "coordinate": None if mesh is None else list(mesh.get_coordinate()),
            "has_group": dist.is_initialized(),
        }


def make_ddp(
    layout: str = "dp2",
    n_workers: int = 2,
    rows: int = 8,
    folder: str = "",
    uneven: str = "short",
    n: int = 0,
) -> df.Flow:
    """Return a flow that trains a role of several workers, which another one follows."""
    actor = df.place(Model, layout, on=range(n_workers), name="actor")
    gen = df.place(Model, layout, on=range(n_workers), follows=actor, name="gen")
    after: list[Any] = [df.publish(gen), df.evaluate(), df.hook(note, on=[actor, gen])]
    if folder:
        after.append(df.save(Path(folder)))
    calls = [
        df.call(gen.generate, "x -> y", rows=rows),
        df.call(actor.train, "x, y", rows=rows, uneven=uneven, after=after),  # type: ignore[arg-type]
    ]
    return df.Flow(calls, source=numbers(n or None), group=2, digests=True)


def make_shifted(folder: str) -> df.Flow:
    """Return a flow that trains a role of workers 2 and 1, and generates on worker 0."""
    actor = df.place(Model, "dp2", on=[2, 1], name="actor")
    gen = df.place(Model, on=[0], follows=actor, name="gen")
    calls = [
        df.call(gen.generate, "x -> y", rows=8, after=[df.offload(actor)]),
        df.call(actor.train, "x, y", rows=8, after=[df.publish(gen), df.evaluate(), df.save(Path(folder))]),
    ]
    return df.Flow(calls, source=numbers(), group=2, digests=True)


class Light(df.Role):
    """Has no modules, and tells what it gets."""

    def setup(self, mesh: df.Mesh) -> None:
        self.mesh = mesh

    def read(self, rows: df.Rows) -> dict[str, Any]:
        values = rows.values_of("x")
        at = "".join(f"{dim}{self.mesh.rank(dim)}" for dim in ("pp", "dp", "tp"))
        rows.drop([i for i, row_id in enumerate(rows.ids) if row_id % 16 == 2], "dull")
        for i, value in enumerate(values):
            rows.tags[i]["by"] = at
            rows.tags[i]["length"] = len(value) if isinstance(value, Tensor) and value.ndim else 0
        return {"z": [f"{at} of {row_id}" for row_id in rows.ids], "dp": float(self.mesh.rank("dp"))}

    def use(self, rows: df.Rows) -> dict[str, float]:
        return {"n": rows.n_rows, "weight": rows.weight}


def lengths() -> Iterator[dict[str, Tensor]]:
    """Yield values of different lengths."""
    random = torch.Generator().manual_seed(5)
    while True:
        yield {"x": torch.rand(int(torch.randint(1, 50, (), generator=random)), generator=random)}


def make_read(layout: str, n_workers: int, rows: int = 8, group: int = 2) -> df.Flow:
    """Return a flow of one function on several workers, and one that reads what it makes."""
    many = df.place(Light, layout, on=range(n_workers), name="many")
    one = df.place(Light, on=[n_workers], name="one", frozen=True)
    inference = df.Interface.INFERENCE
    calls = [
        df.call(many.read, "x -> z", rows=rows, interface=inference),
        df.call(one.use, "z", rows=rows, interface=inference),
    ]
    return df.Flow(calls, source=lengths(), group=group, digests=True)


class Mortal(Light):
    """Adds over all ranks; worker 1 ends its process where it is told to, when the others wait for it, or raises there."""

    place = ""
    n_calls = 0

    def setup(self, mesh: df.Mesh) -> None:
        super().setup(mesh)
        if self.place == "setup":
            self._add(mesh.rank("dp"))

    def model_config(self) -> dict[str, Any]:
        return {"names": list(self.mesh.device_mesh.mesh_dim_names), "has_group": dist.is_initialized()}

    def read(self, rows: df.Rows) -> dict[str, Any]:
        self.n_calls += 1
        if self.place == "error" and self.mesh.rank("dp") == 1:
            raise ValueError("rank 1 has no such number")
        return {"sum": self._add(self.place == f"call {self.n_calls}" and self.mesh.rank("dp") == 1)}

    def _add(self, dies: bool) -> Tensor:
        total = torch.ones(1)
        if dies:
            die()
        dist.all_reduce(total, group=self.mesh.device_mesh.get_group())
        return total[0]


def make_mortal(place: str, n_workers: int = 2) -> df.Flow:
    """Return a flow of which one worker ends in a step that all are in.

    Args:
        place: Where worker 1 ends its process: "setup", or "call 1", "call 2", ...; or "error": it raises in each call.
        n_workers: Number of workers.
    """
    mortal = type("Mortal", (Mortal,), {"place": place})
    role = df.place(mortal, f"dp{n_workers}", on=range(n_workers), name="mortal")
    inference = df.Interface.INFERENCE
    return df.Flow([df.call(role.read, "x", rows=6, interface=inference)], source=numbers())


def make_refused() -> df.Flow:
    """Return a flow that several processes cannot have."""
    first = df.place(Light, "dp2", on=[0, 1], name="first")
    second = df.place(Light, "dp2", on=[1, 2], name="second", frozen=True)
    hook = df.hook(note, on=[first, second])
    calls = [df.call(second.read, "x -> z", rows=2), df.call(first.use, "z", rows=2, after=[hook])]
    return df.Flow(calls, source=numbers())


class Rowwise(df.Role):
    """Functions that compute each row by itself."""

    def setup(self, mesh: df.Mesh) -> None:
        self.sum = 0.0

    def double(self, rows: df.Rows) -> dict[str, Any]:
        for place, row_id in enumerate(rows.ids):
            rows.tags[place]["made"] = row_id
        return {"y": [one * 2 + 1 for one in rows.values_of("x")], "n": 1.0}

    def score(self, rows: df.Rows) -> dict[str, Any]:
        values = rows.values_of("y")
        rows.drop([i for i, one in enumerate(values) if len(one) % 5 == 2], "dull")
        assert all(rows.tags[i]["made"] == row_id for i, row_id in enumerate(rows.ids))
        return {"score": torch.stack([one.max() for one in values])}

    def train(self, rows: df.Rows) -> dict[str, float]:
        for one in rows.values_of("y"):
            self.sum += one.sum().item()
        return {"sum": self.sum, "score": rows["score"].sum().item(), "step": float(rows.ends_step)}


def make_rowwise(layouts: str, group: int, n: int) -> df.Flow:
    """Return a flow of two roles with layouts of their own, and one that trains on a single worker."""
    first, second = layouts.split(",")
    a = df.place(Rowwise, first, on=range(_n_workers(first)), name="a")
    b = df.place(Rowwise, second, on=range(1, _n_workers(second) + 1), name="b")
    one = df.place(Rowwise, on=[1], name="one")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(a.double, "x -> y", rows=2 * group, interface=df.Interface.GENERATE),
        df.call(b.score, "y -> score", rows=4 * group, interface=inference),
        df.call(one.train, "y, score", rows=8 * group),
    ]
    return df.Flow(calls, source=islice(lengths(), n), group=group, digests=True)


def _n_workers(layout: str) -> int:
    return prod(int(word[2:]) for word in layout.split())
