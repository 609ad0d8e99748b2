"""Flows of which roles are on several workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import softs_fast.dataflow as df


class Model(df.Role):
    """A linear layer; gradients are averaged over dp ranks where there are several."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(3)
        self.mesh = mesh
        self.net = nn.Linear(3, 2)
        self.module: Any = self.net
        if mesh.device_mesh is not None:
            self.module = DistributedDataParallel(self.net, process_group=mesh.device_mesh["dp"].get_group())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Any]:
        for place, padding in enumerate(rows.is_padding):
            rows.tags[place]["rank"] = -1 if padding else self.mesh.rank("dp")
        return {"y": rows["x"].sum(dim=1) + rows["x"][:, 0]}

    def train(self, rows: df.Rows) -> dict[str, Any]:
        own = torch.tensor([not padding for padding in rows.is_padding])
        errors = (self.module(rows["x"]).sum(dim=1) - rows["y"]).pow(2)
        loss = errors[own].mean() if own.any() else 0 * errors.sum()
        self.optimizer.zero_grad()
        (loss * rows.weight).backward()
        self.optimizer.step()
        return {"loss": loss, "sum": self.net.weight.sum()}

    def evaluate(self) -> dict[str, float]:
        return {"weight": self.net.weight.sum().item(), "rank": float(self.mesh.rank("dp"))}

    def model_config(self) -> dict[str, Any]:
        mesh = self.mesh.device_mesh
        return {
            "sizes": dict(self.mesh.sizes),
            "ranks": dict(self.mesh.ranks),
            "names": None if mesh is None else list(mesh.mesh_dim_names),
            "coordinate": None if mesh is None else list(mesh.get_coordinate()),
            "has_group": dist.is_initialized(),
        }


def numbers(n: int | None = None) -> Iterator[dict[str, Tensor]]:
    """Yield rows of different lengths, but the same shape where that is needed."""
    random = torch.Generator().manual_seed(11)
    done = 0
    while n is None or done < n:
        done += 1
        yield {"x": torch.rand(3, generator=random)}


def note(*roles: Model) -> None:
    """A hook that changes weights where it runs."""
    with torch.no_grad():
        for role in roles:
            role.net.bias.mul_(0.9)


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

    def double(self, rows: df.Rows) -> dict[str, Any]:
        if all(rows.is_padding):
            return {}
        return {"y": rows["x"] * 2, "n": rows.n_rows}

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


class Mortal(Model):
    """Worker 1 ends its process where it is told to."""

    place = ""

    def setup(self, mesh: df.Mesh) -> None:
        self._die("setup", mesh)
        if self.place == "setup":
            dist.all_reduce(torch.zeros(1), group=mesh.device_mesh.get_group())
        super().setup(mesh)

    def train(self, rows: df.Rows) -> dict[str, Any]:
        self._die("train", self.mesh)
        if self.place == "error" and self.mesh.rank("dp") == 1:
            raise ValueError("rank 1 has no such number")
        dist.all_reduce(torch.zeros(1), group=self.mesh.device_mesh.get_group())
        return {}

    def _die(self, place: str, mesh: df.Mesh) -> None:
        if self.place == place and mesh.rank("dp") == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def make_mortal(place: str, n_workers: int = 3) -> df.Flow:
    """Return a flow of which one worker ends in a step that all are in."""
    mortal = type("Mortal", (Mortal,), {"place": place})
    actor = df.place(mortal, f"dp{n_workers}", on=range(n_workers), name="actor")
    return df.Flow([df.call(actor.train, "x", rows=6)], source=numbers())


class Waiting(Light):
    """Adds over all ranks; the last worker ends its process in the second call, when the others are in theirs."""

    n_calls = 0

    def model_config(self) -> dict[str, Any]:
        mesh = self.mesh.device_mesh
        return {"names": list(mesh.mesh_dim_names), "has_group": dist.is_initialized()}

    def read(self, rows: df.Rows) -> dict[str, Any]:
        self.n_calls += 1
        total = torch.ones(1)
        group = self.mesh.device_mesh.get_group()
        if self.n_calls == 2 and self.mesh.rank("dp") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(total, group=group)
        return {"sum": total[0]}


def make_waiting(n_workers: int = 2) -> df.Flow:
    """Return a flow of workers that wait for each other."""
    role = df.place(Waiting, f"dp{n_workers}", on=range(n_workers), name="waiting")
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
