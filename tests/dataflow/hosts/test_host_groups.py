"""Roles on several workers of several hosts: the bits of one host, weights between layouts, deaths, and what is refused."""

from __future__ import annotations

import os
import signal
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from flow_processes import in_meeting
from flows import ROWS, losses, results_of
from host_workers import HostWorkers, on_hosts, told
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

import softs_fast.dataflow as df


class Sharded(df.Role):
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


def make_sharded() -> df.Flow:
    """Return a flow of roles in different layouts, on four workers; its numbers are those of one process, to the bit."""
    actor = df.place(Sharded, "tp2", on=[0, 1], name="actor")
    gen = df.place(Sharded, "dp2", on=[2, 3], follows=actor, name="gen")
    alone = df.place(Sharded, "tp1", on=[1], follows=actor, name="alone")
    average = df.place(Sharded, "dp2 tp2", on=[2, 3, 0, 1], name="average")
    after = [df.publish(gen, alone), df.param_realloc(actor, average, eta=0.25), df.evaluate()]
    inference = df.Interface.INFERENCE
    calls = [
        df.call(gen.generate, "x -> y", rows=4),
        df.call(alone.generate, "x -> y as z", rows=4),
        df.call(average.generate, "x, z -> y as mixed", rows=8, interface=inference, after=[df.evaluate()]),
        df.call(actor.train, "y, z, mixed", rows=8, after=after),
    ]
    return df.Flow(calls, source=repeat({"x": torch.ones(())}), digests=True)


def results(flow: df.Flow, n_steps: int) -> list[Any]:
    with flow:
        return [results_of(step) for step in flow.steps(n_steps)]


def test_gradients_over_hosts_have_the_bits_of_one_host(tmp_path: Path) -> None:
    hosts, arguments = ("far", "third", "", "third"), {"layout": "dp2 tp2", "n_workers": 4}
    expected = results(in_meeting("parallel_flow", "make_ddp", **arguments)[0], 3)
    with HostWorkers(tmp_path, "parallel_flow:make_ddp", arguments, hosts=hosts) as workers:
        assert results(workers.flow(), 3) == expected


def test_sharded_weights_go_between_hosts(tmp_path: Path) -> None:
    hosts, expected = ("", "far", "far", "third"), results(make_sharded(), 3)
    with HostWorkers(tmp_path, "test_host_groups:make_sharded", hosts=hosts) as workers:
        found = results(workers.flow(), 3)
    # Digests are those of parts of the rows.
    assert [[(one[0], one[3]) for one in step] for step in found] == [
        [(one[0], one[3]) for one in step] for step in expected
    ]


def test_replicas_of_a_host_get_each_row_once(tmp_path: Path) -> None:
    n_steps, arguments = 2, {"layout": "dp1 tp2", "n_workers": 2}
    with on_hosts(tmp_path, "parallel_flow:make_ddp", ["far"] * 2, arguments) as (flow, _):
        list(flow.steps(n_steps))
        # A row has three floats; what the workers make stays on their host.
        assert told(flow) == n_steps * ROWS * 3 * 4


def test_all_begin_anew_with_new_groups(tmp_path: Path) -> None:
    """A peer of the one that is killed may be in a collective call with it; the journal has one folder for all."""
    arguments, found = {"folder": str(tmp_path / "j")}, {}
    with on_hosts(tmp_path, "journal_flow:make_ranks", ("", "far"), arguments, again=range(2)) as (flow, _):
        for step in flow.steps(4):
            if step.number == 3 and not step.repeated:
                os.kill(flow.ask("inside")[1]["pid"], signal.SIGKILL)
            found[step.number] = step["actor.train"]["loss"]
    undisturbed, _ = in_meeting("journal_flow", "make_ranks", folder=str(tmp_path / "undisturbed"))
    with undisturbed:
        assert {number: loss for number, _, loss in losses(undisturbed, 4)} == found
