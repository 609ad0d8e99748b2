"""Ranks in one process: objects, hooks, saves, journals, refusals, and failures that name their worker."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks_flow
import torch
from ranks_flow import Model, numbers
from small_flow import summary

import softs_fast.dataflow as df
from softs_fast.dataflow import checkpoints
from softs_fast.dataflow.declare.hooks import Save
from softs_fast.dataflow.moves import DataManager
from softs_fast.dataflow.worker.part import Part
from softs_fast.errors import ConfigError, FlowError


def in_one(function: str = "make_flow", **arguments: Any) -> df.Flow:
    return df.Flow.in_processes(f"ranks_flow:{function}", arguments, workers=1)


def role(flow: df.Flow, name: str) -> df.Placement:
    return next(one for one in flow.declaration.roles if one.name == name)


def in_train(flow: df.Flow, monkeypatch: pytest.MonkeyPatch, action: Any) -> str:
    """Have the actor do something in its training function; returns the error of the flow."""
    monkeypatch.setattr(Model, "train", action)
    with pytest.raises(FlowError) as caught, flow:
        list(flow.steps(2))
    return str(caught.value)


def test_each_rank_has_an_object_and_its_rows() -> None:
    flow = in_one(layout="dp2", gen_layout="dp1", shift=2)
    with flow:
        step = next(flow.steps(1))
        assert flow.ask("model_config", role=role(flow, "actor")) == {"size": 2, "rank": 0}
        assert flow.role(role(flow, "actor")).mesh.device_mesh is None
        assert flow.ask("inside") == {}
        ids = flow.fetch(4)
        call = flow.post("gen.generate", ids)
        flow.flush(call)
        assert call.result().ids == ids
        assert len(flow.values(ids, "y")) == 4
        assert flow.clear_data_cache(ids) == 2
    assert step.n_rows == 8


def test_the_generators_of_this_process_are_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    due = (torch.rand(1).item(), np.random.rand(), random.random())
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    first = summary(in_one(), 2)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == due
    assert summary(in_one(), 2) == first


def test_checkpoints_of_ranks_are_written_once_and_read_by_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    save = checkpoints.save

    def count(name: str, one: df.Role, folder: Path, step: int) -> None:
        written.append((name, step))
        save(name, one, folder, step)

    monkeypatch.setattr(checkpoints, "save", count)
    flow = in_one(folder=str(tmp_path))
    actor = role(flow, "actor")
    with flow:
        weights = [step["actor.train"]["slow_net"] for step in flow.steps(2)]
        assert flow.load(actor, tmp_path) == 2
        assert next(flow.steps(1))["actor.train"]["slow_net"] not in weights
        assert written == [("actor", step) for step in (1, 2, 3)]
        (tmp_path / "file").write_text("no folder")
        call = flow.post(Save((actor,), folder=tmp_path / "file"))
        flow.flush(call)
        with pytest.raises(FlowError, match=r"save .*failed on worker 0.*Not a directory"):
            call.result()
    assert sorted(path.name for path in (tmp_path / "actor").iterdir()) == ["step-1", "step-2", "step-3"]


def test_a_flow_goes_on_from_its_journal_with_the_bits_of_one_that_was_not_interrupted(
    tmp_path: Path,
) -> None:
    expected = summary(in_one(journal=str(tmp_path / "whole")), 4)
    first = summary(in_one(journal=str(tmp_path / "parts")), 2)
    assert first + summary(in_one(journal=str(tmp_path / "parts")), 4) == expected


@pytest.mark.parametrize("layout", ["dp2 tp2", "pp2", "cp2 dp1"])
def test_layouts_that_need_process_groups_are_refused(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_workers = df.Layout.parse(layout).n_workers

    def make() -> df.Flow:
        many = df.place(Model, layout, on=range(n_workers), name="many")
        return df.Flow([df.call(many.train, "x", rows=4)], source=numbers(None))

    monkeypatch.setattr(ranks_flow, "make_other", make, raising=False)
    with pytest.raises(ConfigError, match=rf"role 'many' has layout '{layout}', and .p needs process groups"):
        in_one("make_other")


@pytest.mark.parametrize("workers", [0, 2])
def test_other_numbers_of_processes_are_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match=rf"workers is {workers}; need 1, for all in this process, or None"):
        df.Flow.in_processes("ranks_flow:make_flow", {}, workers=workers)


def test_an_exception_of_one_rank_is_named_and_the_others_do_not_wait_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def train(self: Model, rows: df.Rows) -> None:
        if self.mesh.rank("dp") == 1:
            raise ValueError("rank 1 has no such number")
        try:
            self.mesh.all_reduce(torch.ones(1))
        except FlowError as error:
            seen.append(str(error))
            raise

    text = in_train(in_one(layout="dp3"), monkeypatch, train)
    assert text.startswith("actor.train failed on worker 1 on 8 rows")
    assert "ValueError: rank 1 has no such number" in text
    assert len(seen) == 2
    (first,) = (one for one in seen if one.startswith("worker 0 "))
    assert "waits in all_reduce (sum) of 1 tensors: float32 [1] over dp of role 'actor'" in first
    assert "worker 1 has failed; worker 2 waits in all_reduce" in first


def test_a_rank_that_cannot_read_for_whatever_reason_tells_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def get(self: DataManager, places: Any) -> Any:
        if self.worker == 1:
            raise RuntimeError("not enough memory: you tried to allocate 1 bytes")
        return read(self, places)

    def run_and_note(self: Part, *args: Any) -> Any:
        outcome, n_bytes = run(self, *args)
        ended[self._store.worker] = outcome
        return outcome, n_bytes

    read, run, ended = DataManager.get, Part.run, dict[int, Any]()
    with in_one() as flow:
        monkeypatch.setattr(DataManager, "get", get)
        monkeypatch.setattr(Part, "run", run_and_note)
        with pytest.raises(FlowError, match=r"gen\.generate failed on worker 1 .*RuntimeError: not enough"):
            list(flow.steps(1))
    assert ended[0].failure.reason == "another worker of the role could not read its rows"
    assert ended[1].failure.text.startswith("RuntimeError: not enough memory")
    assert (ended[0].unread, ended[1].unread) == (True, False)


def test_a_rank_that_returns_while_another_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: Model, rows: df.Rows) -> None:
        if self.mesh.rank("dp") == 0:
            self.mesh.average_gradients(self.net, rows.weight)

    text = in_train(in_one(), monkeypatch, train)
    assert text.startswith("actor.train failed on worker 0 on 8 rows")
    assert "worker 1 has returned; all ranks have to make the same calls" in text


def test_ranks_in_different_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: Model, rows: df.Rows) -> None:
        if self.mesh.rank("dp") == 0:
            self.mesh.average_gradients(self.net, rows.weight)
        self.mesh.all_reduce(torch.ones(2), "mean")

    text = in_train(in_one(), monkeypatch, train)
    assert "worker 0 is in average_gradients of 4 tensors: float32 [16, 3]" in text
    assert "worker 1 is in all_reduce (mean) of 1 tensors: float32 [2]" in text


def test_a_worker_that_cannot_begin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def setup(self: Model, mesh: df.Mesh) -> None:
        if mesh.rank("dp") == 1:
            raise OSError("no such model")
        mesh.all_reduce(torch.ones(1))

    monkeypatch.setattr(Model, "setup", setup)
    with pytest.raises(FlowError, match="could not begin: worker 1: OSError: no such model"), in_one():
        pass


def test_a_function_that_returns_another_flow_each_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter(range(4, 100, 4))
    make = ranks_flow.make_flow
    monkeypatch.setattr(ranks_flow, "make_other", lambda: make(rows=next(rows)), raising=False)
    with pytest.raises(FlowError, match=r"worker 0 has built another flow .*rows=8"), in_one("make_other"):
        pass


def test_hooks_by_hand_are_those_of_processes() -> None:
    flow = in_one()
    actor, slow = role(flow, "actor"), role(flow, "slow")
    with flow:
        with pytest.raises(ConfigError, match="hook print is a function that no call of the flow has"):
            flow.post(df.hook(print, on=[actor]))
        call = flow.post(df.param_realloc(actor, slow))
        flow.flush(call)
        call.result()
        first, second = flow.role(actor).net[0], flow.role(slow).net[0]
        assert torch.equal(first.weight, second.weight)
        assert first.weight.data_ptr() != second.weight.data_ptr()


def test_no_worker_keeps_anything_of_rows_that_have_gone() -> None:
    flow = in_one(gen_layout="dp1", shift=1)
    with flow:
        list(flow.steps(3))
        flow.clear_data_cache(range(10_000))
        while flow._runner.advance(automatic=False):
            pass
        backend: Any = flow._backend
        stores = [backend._store, *(one.store for one in backend._workers.values())]
        assert len(stores) == 3
        assert [store.n_bytes for store in stores] == [0, 0, 0]


def test_tags_of_rows_that_are_padding_are_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    generate = Model.generate

    def tag(self: Model, rows: df.Rows) -> dict[str, Any]:
        for tags, padding in zip(rows.tags, rows.is_padding, strict=True):
            tags["padding" if padding else "data"] = True
        return generate(self, rows)

    monkeypatch.setattr(Model, "generate", tag)
    monkeypatch.setattr(Model, "train", lambda self, rows: seen.extend(map(dict, rows.tags)))
    with in_one(layout="dp2", gen_layout="dp3", shift=1, rows=4, n=2) as flow:
        list(flow.steps(1))
    assert len(seen) == 4
    assert all("data" in tags and "padding" not in tags for tags in seen)
