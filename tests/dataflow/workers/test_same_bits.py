"""Several workers, each with objects of its own, do what one process does: bit for bit."""

from __future__ import annotations

import functools
from pathlib import Path

import flows
import pytest
import torch
from flow_threads import ThreadWorkers, in_threads
from flows import called, make_flow, role_of, summary
from waiting import eventually

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.hooks import Save
from softs_fast.dataflow.workers.processes import ProcessBackend
from softs_fast.errors import ConfigError, FlowError


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_the_same_numbers_and_digests_as_in_one_process(n_workers: int) -> None:
    expected = summary(make_flow(), 4)
    flow, _ = in_threads(functools.partial(make_flow, n_workers=n_workers))
    assert summary(flow, 4) == expected
    assert expected[-1][1]["dull"] > 2


def test_no_worker_keeps_anything_of_rows_that_have_gone() -> None:
    flow, workers = in_threads(functools.partial(make_flow, max_age=1, ahead=1))
    with flow:
        steps = list(flow.steps(6))
        assert steps[-1].age_max <= 1
        flow.clear_data_cache(range(10_000))
        assert flow.ask("stats")["rows"] == 0
        while flow._session.runner.advance(automatic=False):
            pass  # what was sent before ends
        for worker in workers.workers.values():
            assert worker._loop is not None
            store = worker._loop.store
            eventually(lambda store=store: store.n_bytes == 0, "the store is empty")
        assert flow._backend._store.n_bytes == 0  # type: ignore[attr-defined]


def test_checkpoints_are_written_and_read_by_the_worker_of_the_role(tmp_path: Path) -> None:
    flow, _ = in_threads(functools.partial(make_flow, str(tmp_path)))
    actor = role_of(flow, "actor")
    with flow:
        weights = [step["actor.train"].get("weight") for step in flow.steps(3)]
        assert flow.load(actor, tmp_path) == 2
        called(flow, Save((actor,), folder=tmp_path / "again"))
        with pytest.raises(ConfigError, match="has no checkpoint of role 'actor'"):
            flow.load(actor, tmp_path / "elsewhere")
    assert weights[1] is not None
    assert (tmp_path / "again" / "actor" / "step-0").is_dir()


def test_requests_by_hand(tmp_path: Path) -> None:
    flow, _ = in_threads(make_flow)
    gen, actor = role_of(flow, "gen"), role_of(flow, "actor")
    alone = make_flow()
    with flow, alone:
        ids = flow.fetch(4)
        assert alone.fetch(4) == ids
        assert called(flow, "gen.generate", ids).digest == called(alone, "gen.generate", ids).digest
        for column in ("x", "y"):
            assert torch.equal(torch.stack(flow.values(ids, column)), torch.stack(alone.values(ids, column)))
        assert flow.values(ids, "text") == alone.values(ids, "text")
        assert flow.ask("model_config", role=gen) == {"name": "gen"}
        inside = flow.ask("inside")
        assert sorted(inside) == [0, 1, 2]
        assert {one["pid"] for one in inside.values()} == {1000, 1001, 1002}
        with pytest.raises(ConfigError, match="is in the process of worker 0; use a hook"):
            flow.role(actor)
        with pytest.raises(ConfigError, match="hook print is a function that no call of the flow has"):
            flow.post(df.hook(print, on=[gen]))
        mixed = flow.post(df.param_realloc(actor, gen, eta=0.5))
        late = flow.post(df.offload(gen))
        with pytest.raises(FlowError, match="has a flush named it"):
            late.result(timeout_s=45)
        flow.flush(mixed, late)
        assert late.result(timeout_s=45).seconds["offload"] >= 0
        assert mixed.result(timeout_s=45).function == "param_realloc"


def test_what_several_processes_cannot_do_is_refused_before_anything_runs() -> None:
    def two_objects() -> df.Flow:
        actor, other = (df.place(flows.Model, on=[i], name=name) for i, name in enumerate(("actor", "other")))
        hook = df.hook(flows.note, on=[actor, other])
        return df.Flow([df.call(actor.train, "x", rows=2, after=[hook])], source=flows.numbers())

    def no_role() -> df.Flow:
        return df.Flow([df.call(flows.extra, "x", rows=2)], source=flows.numbers())

    for make, complaint in (
        (two_objects, r"hook note gets .* roles on different workers: actor on \[0\], other on \[1\]"),
        (no_role, "the flow has no roles"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            in_threads(make)


def test_a_worker_that_has_built_another_flow_is_refused_by_name() -> None:
    flow = make_flow()
    lines = flow.declaration.lines()
    workers = ThreadWorkers(lambda: make_flow(n_workers=2).declaration, lines, (0, 1, 2))
    flow._use(ProcessBackend(flow.declaration, workers))
    with (
        pytest.raises(
            FlowError, match=r"worker 0 has built another flow than its master; line \d+ .* on \[2\]"
        ),
        flow,
    ):
        pass
