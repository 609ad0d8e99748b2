"""Roles of DTensors in real processes: weights from one layout to another one, through shared memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import State, decode, encode
from softs_fast.dataflow.process.objects import Objects
from softs_fast.dataflow.process.part import Part
from softs_fast.dataflow.process.work import HookWork
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.ids import state_id
from softs_fast.dataflow.store.weights.shown import Shown


def full(seed: int) -> dict[str, Tensor]:
    """The tensors of a model; some sizes are no multiple of the mesh."""
    torch.manual_seed(seed)
    return {
        "rows": torch.randn(7, 3),
        "columns": torch.randn(4, 5),
        "both": torch.randn(8, 6),
        "large": torch.randn(300, 128),
        "bias": torch.randn(6),
        "scale": torch.randn(()),
    }


class Sharded(df.Role):
    """A module of which each tensor has placements; `scale` is a buffer."""

    #: Of each role its seed, the ranks and names of its mesh, and placements by name.
    meshes: ClassVar[dict[str, tuple[int, DeviceMesh, dict[str, Any]]]] = {}

    def setup(self, mesh: df.Mesh) -> None:
        seed, devices, placements = self.meshes[mesh.name]
        self.net = nn.Module()
        for name, tensor in full(seed).items():
            made: Any = tensor
            if name in placements and devices.get_coordinate() is not None:
                made = distribute_tensor(tensor, devices, placements[name])
            if name == "scale":
                self.net.register_buffer(name, made)
            else:
                setattr(self.net, name, nn.Parameter(made))

    def run(self, rows: df.Rows) -> None: ...


class Fully(df.Role):
    """A module that FSDP2 shards along dp, over what tp has sharded."""

    mesh: DeviceMesh

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(4, 8, bias=False)
        weight = distribute_tensor(torch.arange(32.0).reshape(8, 4), self.mesh["tp"], [Shard(0)])
        self.net.weight = nn.Parameter(weight)
        fully_shard(self.net, mesh=self.mesh["dp"])

    def run(self, rows: df.Rows) -> None: ...


class Gathered(df.Role):
    """A module that FSDP2 keeps gathered after it has run."""

    mesh: DeviceMesh

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(4, 8, bias=False)
        fully_shard(self.net, mesh=self.mesh)

    def run(self, rows: df.Rows) -> None: ...


def worker_of(rank: int, declaration: Declaration, store: DataManager, folder: str) -> tuple[Objects, Any]:
    """A worker's objects, and a function that runs its part of a hook; messages travel through a store of torch."""
    objects = Objects(declaration.roles, rank)
    objects.setup()
    part = Part(declaration, objects, store)
    mail = dist.FileStore(f"{folder}/mail", dist.get_world_size())
    mail.set_timeout(timedelta(seconds=45))

    def run(hook: Any, owner: df.Placement | None, ticket: int) -> None:
        def show_to(shown: Shown) -> None:
            mail.set(f"{ticket} {shown.role} {rank}", encode(State(1, ticket, shown)))

        def await_state(role: int, known: int) -> Sequence[Shown]:
            others = [worker for worker in declaration.roles[role].on if worker != rank]
            found = []
            for worker in others[: known + 1]:
                state = decode(mail.get(f"{ticket} {role} {worker}"))
                assert isinstance(state, State)
                found.append(state.shown)
            return found

        result = part.run(HookWork(hook, owner, 1), 1, ticket, await_state, show_to)
        assert result.failure is None, result.failure.text
        dist.barrier()
        store.free([state_id(ticket)])

    return objects, run


def whole(tensor: Any) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def begin(rank: int, size: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/group",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=45),
    )


def publishes(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    begin(rank, size, folder)
    tp, dp, one = (DeviceMesh("cpu", on, mesh_dim_names=(name,)) for on, name in (([0, 1], "tp"), ([2, 3], "dp"), ([1], "tp")))  # fmt: skip
    square = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    actor = df.place(Sharded, "tp2", on=[0, 1], name="actor")
    gen = df.place(Sharded, "dp2", on=[2, 3], follows=actor, name="gen")
    alone = df.place(Sharded, "tp1", on=[1], follows=actor, name="alone")
    average = df.place(Sharded, "dp2 tp2", on=[0, 1, 2, 3], name="average")
    rows = {"rows": [Shard(0)], "columns": [Shard(1)], "both": [Shard(1)], "large": [Shard(0)]}
    Sharded.meshes = {
        "actor": (1, tp, rows),
        "gen": (2, dp, {"both": [Shard(0)], "large": [Replicate()]}),
        "alone": (3, one, {"rows": [Shard(0)]}),
        "average": (4, square, {name: [Shard(0), Shard(min(one.ndim, 2) - 1)] for name, one in full(4).items() if one.ndim}),
    }  # fmt: skip
    declaration = Declaration(
        (
            df.call(gen.run, "x", rows=2),
            df.call(alone.run, "x", rows=2),
            df.call(
                actor.run,
                "x",
                rows=2,
                interface=df.Interface.TRAIN_STEP,
                after=[df.publish(gen, alone), df.param_realloc(actor, average, eta=0.25)],
            ),
        )
    )
    with DataManager(rank, max_bytes=1 << 24) as store:
        objects, run = worker_of(rank, declaration, store, folder)
        for ticket in (1, 2):
            if actor in objects:
                with torch.no_grad():
                    for parameter in objects[actor].net.parameters():
                        parameter.mul_(2)
            loss = objects[gen].net.both.square().sum() if gen in objects else None
            run(df.publish(gen, alone), actor, ticket)
            if loss is not None:  # the DTensor has a counter of its own, beside that of its shard
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()
        run(df.param_realloc(actor, average, eta=0.25), actor, 3)
        run(df.param_realloc(alone, average, eta=0.5), None, 4)
        first, last = full(1), full(4)
        for role in (gen, alone, average):
            if role not in objects:
                continue
            for name, tensor in (*objects[role].net.named_parameters(), *objects[role].net.named_buffers()):
                expected = first[name] if name == "scale" else 4 * first[name]
                if role is average:
                    expected = (
                        last[name] if name == "scale" else last[name].lerp(expected, 0.25).lerp(expected, 0.5)
                    )
                assert torch.equal(whole(tensor), expected), (role.name, name)
    dist.destroy_process_group()


def moves_fsdp(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    begin(rank, size, folder)
    Fully.mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    Gathered.mesh = DeviceMesh("cpu", [0, 1])
    DeviceMesh("cpu", [2, 3])
    actor = df.place(Fully, "dp2 tp2", on=[0, 1, 2, 3], name="actor")
    gen = df.place(Gathered, "dp2", on=[0, 1], follows=actor, name="gen")
    declaration = Declaration(
        (
            df.call(gen.run, "x", rows=2),
            df.call(actor.run, "x", rows=2, interface=df.Interface.TRAIN_STEP, after=[df.publish(gen)]),
        )
    )
    with DataManager(rank, max_bytes=1 << 24) as store:
        objects, run = worker_of(rank, declaration, store, folder)
        weight = torch.arange(32.0).reshape(8, 4)
        # FSDP2 cuts what tp has cut; the placement says so.
        assert [type(one) is Shard for one in objects[actor].net.weight.placements] == [False, True]
        for ticket in (1, 2):
            if gen in objects:
                with torch.no_grad():
                    objects[gen].net(torch.ones(1, 4))
                assert not hasattr(objects[gen].net.weight, "placements")
            run(df.publish(gen), actor, ticket)
            if gen in objects:
                assert torch.equal(objects[gen].net.weight.full_tensor(), ticket * weight)
                with torch.no_grad():
                    assert torch.equal(objects[gen].net(torch.eye(4)), ticket * weight.T)
            with torch.no_grad():
                objects[actor].net.weight.mul_(2)
    dist.destroy_process_group()


def test_tensors_move_between_layouts_of_processes(tmp_path: Path) -> None:
    ranks.run(publishes, 4, str(tmp_path))


def test_what_fsdp_has_sharded_or_gathered_moves(tmp_path: Path) -> None:
    ranks.run(moves_fsdp, 4, str(tmp_path))
