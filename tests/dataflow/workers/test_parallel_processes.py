"""Worker processes with process groups: gradients over ranks, checkpoints, and deaths inside of collective calls."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import parallel_flow
import pytest
import torch
import torch.distributed.checkpoint as dcp
from flow_processes import END_S, in_meeting
from flows import Linear, called, numbers, role_of
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.hooks import Save
from softs_fast.errors import FlowError


class Sharded(Linear):
    """Two layers, of which each worker has parts: by FSDP2, or tensor parallel with DTensor."""

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
        self.learn(loss * rows.weight)
        return {"loss": loss.detach()}


def make_sharded(layout: str = "dp1", n_workers: int = 1, folder: str = "") -> df.Flow:
    """Return a flow that trains it, and saves each step."""
    actor = df.place(Sharded, layout, on=range(n_workers), name="actor")
    calls = [df.call(actor.train, "x", rows=6, after=[df.save(Path(folder))])]
    return df.Flow(calls, source=numbers(), group=2)


def trained(flow: df.Flow, n_steps: int | None) -> list[dict[str, float]]:
    with flow:
        return [step["actor.train"] for step in flow.steps(n_steps)]


@pytest.mark.parametrize(("layout", "n_workers"), [("dp2", 2), ("dp3", 3)])
def test_gradients_over_ranks_are_those_of_one_process(layout: str, n_workers: int) -> None:
    """With dp3, ranks have 4, 2 and 2 rows; in the last step, one row less than ranks."""
    arguments: dict[str, Any] = {"layout": layout, "n_workers": n_workers, "n": 14}
    expected = trained(parallel_flow.make_ddp(**arguments), None)
    flow, workers = in_meeting("parallel_flow", "make_ddp", **arguments)
    found = trained(flow, None)
    assert not workers.killed
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        for name in ("loss", "sum", "weight"):
            assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("layout", "n_workers", "rank", "names"),
    # The mean of ranks over the heads of both dp ranks. Roles of one worker have no process group.
    [("dp2 tp2", 4, 0.5, ["dp", "tp"]), ("dp1", 1, 0.0, None)],
)
def test_meshes_are_those_of_torch(layout: str, n_workers: int, rank: float, names: list[str] | None) -> None:
    flow, _ = in_meeting("parallel_flow", "make_ddp", layout=layout, n_workers=n_workers)
    with flow:
        assert next(flow.steps(1))["actor.train"]["rank"] == rank
        assert flow.ask("model_config", role=role_of(flow, "gen")) == {
            "sizes": {"dp": 2, "tp": 2} if names else {"dp": 1},
            "ranks": dict.fromkeys(names or ["dp"], 0),
            "names": names,
            "coordinate": [0, 0] if names else None,
            "has_group": bool(names),
        }


def test_checkpoints_of_all_ranks_go_to_one_folder_and_fit_one_process(tmp_path: Path) -> None:
    """One that cannot be written fails, and no rank waits on."""
    folder = tmp_path / "saved"
    flow, workers = in_meeting("parallel_flow", "make_ddp", folder=str(folder), n=16)
    (tmp_path / "file").write_text("no folder")
    with flow:
        actor = role_of(flow, "actor")
        weights = [step["actor.train"]["weight"] for step in flow.steps(2)]
        for _ in range(2):
            with pytest.raises(
                FlowError, match=r"hook save .*failed on worker \d: .*Not a directory: .*file/actor"
            ):
                called(flow, Save((actor,), folder=tmp_path / "file"))
        called(flow, Save((actor,), folder=tmp_path / "by hand"))
        assert (flow.load(actor, tmp_path / "by hand"), flow.load(actor, folder)) == (0, 2)
        weights += [step["actor.train"]["weight"] for step in flow.steps(1)]
    assert not workers.killed
    assert sorted(path.name for path in (folder / "actor").iterdir()) == ["step-1", "step-2", "step-3"]
    alone = parallel_flow.make_ddp(n=16)
    with alone:
        actor = role_of(alone, "actor")
        assert alone.load(actor, folder) == 3
        assert alone.role(actor).evaluate()["weight"] == weights[2]
    assert weights[1] != weights[2]


def test_a_role_on_the_last_workers_trains_and_is_saved(tmp_path: Path) -> None:
    if "global_coordinator_rank" not in inspect.getsource(dcp.utils):
        pytest.skip("this torch saves only groups that have the first rank of all")
    expected = trained(parallel_flow.make_shifted(str(tmp_path / "alone")), 2)
    flow, workers = in_meeting("parallel_flow", "make_shifted", folder=str(tmp_path / "shifted"))
    with flow:
        found = [step["actor.train"] for step in flow.steps(2)]
        actor = role_of(flow, "actor")
        assert flow.load(actor, tmp_path / "shifted") == 2
        assert called(flow, df.offload(actor)).seconds["offload"] >= 0
    assert not workers.killed
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["weight"] == pytest.approx(other["weight"], rel=1e-5)


@pytest.mark.parametrize(
    ("layout", "n_workers"),
    [
        ("dp2", 2),
        # Each process imports DTensor, which takes seconds.
        pytest.param("tp2", 2, marks=pytest.mark.slow),
        pytest.param("dp2 tp2", 4, marks=pytest.mark.slow),
    ],
)
def test_shards_of_a_model_train_as_one_and_are_saved_as_one(
    tmp_path: Path, layout: str, n_workers: int
) -> None:
    """Three groups: with dp2 one rank has twice the rows of the other."""
    expected = [one["loss"] for one in trained(make_sharded(folder=str(tmp_path / "alone")), 4)]
    arguments: dict[str, Any] = {"layout": layout, "n_workers": n_workers, "folder": str(tmp_path / "shards")}
    flow, workers = in_meeting("test_parallel_processes", "make_sharded", **arguments)
    with flow:
        found = [step["actor.train"]["loss"] for step in flow.steps(2)]
        assert flow.load(role_of(flow, "actor"), tmp_path / "shards") == 2
        found += [step["actor.train"]["loss"] for step in flow.steps(2)]
    assert not workers.killed
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    resumed = make_sharded(folder=str(tmp_path / "resumed"))
    with resumed:
        actor = role_of(resumed, "actor")
        assert resumed.load(actor, tmp_path / "shards") == 4
        weights = {name: value.clone() for name, value in resumed.role(actor).net.state_dict().items()}
        resumed.load(actor, tmp_path / "alone")
        for name, value in resumed.role(actor).net.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_collective_calls_end_by_themselves_when_a_member_is_killed(n_workers: int) -> None:
    """Also those of ranks that are no neighbours of it: each worker gets to the end of the flow, and none is killed."""
    flow, workers = in_meeting("parallel_flow", "make_mortal", place="call 2", n_workers=n_workers)
    with flow, pytest.raises(FlowError, match=r"worker 1 is lost: process \d+: signal SIGKILL"):
        list(flow.steps(2))
    assert not workers.killed


def test_an_exception_of_one_rank_is_raised_although_the_others_wait_for_it() -> None:
    flow, workers = in_meeting("parallel_flow", "make_mortal", place="error", n_workers=3)
    workers.end_s = END_S
    with (
        pytest.raises(
            FlowError, match=r"mortal.read failed on worker 1 .*ValueError: rank 1 has no such number"
        ),
        flow,
    ):
        next(flow.steps(1))
    assert not workers.processes
