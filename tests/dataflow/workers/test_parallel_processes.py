"""Worker processes with process groups: gradients over ranks, checkpoints, and deaths inside of collective calls."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import parallel_flow
import parted_flow
import pytest
import torch
import torch.distributed.checkpoint as dcp
from flow_processes import END_S, in_meeting

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.hooks import Save
from softs_fast.errors import FlowError


def role(flow: df.Flow, name: str) -> df.Placement:
    return next(one for one in flow.declaration.roles if one.name == name)


def losses(flow: df.Flow, n_steps: int | None) -> list[dict[str, float]]:
    with flow:
        return [step["actor.train"] for step in flow.steps(n_steps)]


@pytest.mark.parametrize(("layout", "n_workers"), [("dp2", 2), ("dp3", 3)])
def test_gradients_over_ranks_are_those_of_one_process(layout: str, n_workers: int) -> None:
    """With dp3, ranks have 4, 2 and 2 rows; in the last step, one row less than ranks."""
    arguments: dict[str, Any] = {"layout": layout, "n_workers": n_workers, "n": 14}
    expected = losses(parallel_flow.make_ddp(**arguments), None)
    flow, workers = in_meeting("parallel_flow", "make_ddp", **arguments)
    found = losses(flow, None)
    assert not workers.killed
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        for name in ("loss", "sum", "weight"):
            assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-6)


def test_meshes_are_those_of_torch() -> None:
    flow, _ = in_meeting("parallel_flow", "make_ddp", layout="dp2 tp2", n_workers=4)
    with flow:
        # The mean over the heads of both ranks.
        assert next(flow.steps(1))["actor.train"]["rank"] == 0.5
        config = flow.ask("model_config", role=role(flow, "gen"))
        assert config == {
            "sizes": {"dp": 2, "tp": 2},
            "ranks": {"dp": 0, "tp": 0},
            "names": ["dp", "tp"],
            "coordinate": [0, 0],
            "has_group": True,
        }


def test_flows_without_such_roles_have_no_process_group() -> None:
    flow, _ = in_meeting("parallel_flow", "make_ddp", layout="dp1", n_workers=1)
    with flow:
        next(flow.steps(1))
        config = flow.ask("model_config", role=role(flow, "actor"))
        assert (config["has_group"], config["names"], config["sizes"]) == (False, None, {"dp": 1})


def test_checkpoints_of_all_ranks_go_to_one_folder_and_fit_one_process(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"folder": str(tmp_path), "n": 16}
    flow, workers = in_meeting("parallel_flow", "make_ddp", **arguments)
    with flow:
        steps = [step["actor.train"]["weight"] for step in flow.steps(2)]
        assert flow.load(role(flow, "actor"), tmp_path) == 2
        steps += [step["actor.train"]["weight"] for step in flow.steps(1)]
    assert not workers.killed
    assert sorted(path.name for path in (tmp_path / "actor").iterdir()) == ["step-1", "step-2", "step-3"]
    alone = parallel_flow.make_ddp(n=16)
    with alone:
        actor = role(alone, "actor")
        assert alone.load(actor, tmp_path) == 3
        assert alone.role(actor).evaluate()["weight"] == steps[2]
    assert steps[1] != steps[2]


def test_a_checkpoint_that_cannot_be_written_fails_and_no_rank_waits_on(tmp_path: Path) -> None:
    flow, workers = in_meeting("parallel_flow", "make_ddp", n=16)
    (tmp_path / "file").write_text("no folder")
    with flow:
        actor = role(flow, "actor")
        for _ in range(2):
            save = flow.post(Save((actor,), folder=tmp_path / "file"))
            flow.flush(save)
            with pytest.raises(
                FlowError, match=r"hook save .*failed on worker \d: .*Not a directory: .*file/actor"
            ):
                save.result(timeout_s=45)
        save = flow.post(Save((actor,), folder=tmp_path / "folder"))
        flow.flush(save)
        save.result(timeout_s=45)
        assert flow.load(actor, tmp_path / "folder") == 0
    assert not workers.killed


def test_a_role_on_the_last_workers_trains_and_is_saved(tmp_path: Path) -> None:
    if "global_coordinator_rank" not in inspect.getsource(dcp.utils):
        pytest.skip("this torch saves only groups that have the first rank of all")
    expected = losses(parallel_flow.make_shifted(str(tmp_path / "alone")), 2)
    flow, workers = in_meeting("parallel_flow", "make_shifted", folder=str(tmp_path / "shifted"))
    with flow:
        found = [step["actor.train"] for step in flow.steps(2)]
        actor = role(flow, "actor")
        assert flow.load(actor, tmp_path / "shifted") == 2
        offload = flow.post(df.offload(actor))
        flow.flush(offload)
        assert offload.result(timeout_s=45).seconds["offload"] >= 0
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
    alone = parted_flow.make_sharded(folder=str(tmp_path / "alone"))
    with alone:
        expected = [step["model.train"]["loss"] for step in alone.steps(4)]
    arguments: dict[str, Any] = {"layout": layout, "n_workers": n_workers, "folder": str(tmp_path / "shards")}
    flow, workers = in_meeting("parted_flow", "make_sharded", **arguments)
    with flow:
        found = [step["model.train"]["loss"] for step in flow.steps(2)]
        assert flow.load(role(flow, "model"), tmp_path / "shards") == 2
        found += [step["model.train"]["loss"] for step in flow.steps(2)]
    assert not workers.killed
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    resumed = parted_flow.make_sharded(folder=str(tmp_path / "resumed"))
    with resumed:
        model = role(resumed, "model")
        assert resumed.load(model, tmp_path / "shards") == 4
        weights = {name: value.clone() for name, value in resumed.role(model).net.state_dict().items()}
        resumed.load(model, tmp_path / "alone")
        for name, value in resumed.role(model).net.state_dict().items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_collective_calls_end_by_themselves_when_a_member_is_killed(n_workers: int) -> None:
    """Also those of ranks that are no neighbours of it: each worker gets to the end of the flow, and none is killed."""
    flow, workers = in_meeting("parallel_flow", "make_waiting", n_workers=n_workers)
    with flow, pytest.raises(FlowError, match=r"worker 1 is lost: process \d+: signal SIGKILL"):
        list(flow.steps(2))
    assert not workers.killed


def test_an_exception_of_one_rank_is_raised_although_the_others_wait_for_it() -> None:
    flow, workers = in_meeting("parallel_flow", "make_mortal", place="error")
    workers.end_s = END_S
    with (
        pytest.raises(
            FlowError, match=r"actor.train failed on worker 1 .*ValueError: rank 1 has no such number"
        ),
        flow,
    ):
        next(flow.steps(1))
    assert not workers.processes
