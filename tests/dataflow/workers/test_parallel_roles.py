"""Roles on several workers: peers get the same rows, heads report, padding is no data, and a failure names its worker."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import parallel_flow
import pytest
import torch
from flow_threads import in_threads
from flows import called, post, role_of, summary
from parallel_flow import make_read

import softs_fast.dataflow as df
from softs_fast.dataflow.link.events import Received
from softs_fast.dataflow.link.messages import MainTask, Result, State
from softs_fast.errors import FlowError


def mains(workers: Any) -> list[tuple[int, MainTask]]:
    return [(worker, one) for worker, one in workers.hub.sent if isinstance(one, MainTask)]


def test_peers_get_the_same_and_the_last_stage_reports() -> None:
    flow, workers = in_threads(functools.partial(make_read, "pp2 dp2 tp2", 8))
    with flow:
        ids = flow.fetch(8)
        result = called(flow, "many.read", ids)
        sent = {worker: one for worker, one in mains(workers) if one.function == "many.read"}
        assert sorted(sent) == list(range(8))
        # Workers 0, 1, 4, 5 are dp rank 0; 4 and 6 are the heads.
        for peers, head in (((0, 1, 4, 5), 4), ((2, 3, 6, 7), 6)):
            first = sent[peers[0]]
            assert all((sent[one].ids, sent[one].columns) == (first.ids, first.columns) for one in peers)
            assert [one for one in peers if sent[one].part.is_head] == [head]  # type: ignore[union-attr]
            kept = [row_id for row_id in sent[head].ids if row_id not in (2, 3)]
            rank = peers.index(head) and peers[0] // 2
            assert flow.values(kept, "z") == [f"pp1dp{rank}tp0 of {row_id}" for row_id in kept]
        assert sorted(sent[4].ids + sent[6].ids) == list(ids)
        assert flow.ask("stats")["dropped"] == {"dull": 1}
        # The mean over rows of what is 0 on one rank and 1 on the other.
        assert result.numbers == {"dp": len(sent[6].ids) / 8}
        tags = [flow._session.runner.master.rows.tags(row_id) for row_id in ids if row_id not in (2, 3)]
        assert {tag["by"] for tag in tags} == {"pp1dp0tp0", "pp1dp1tp0"}


def test_the_same_slices_and_digests_again_and_rows_that_go_on() -> None:
    summaries = []
    for _ in range(2):
        flow, _ = in_threads(functools.partial(make_read, "dp3", 3, rows=12))
        summaries.append(summary(flow, 3))
    assert summaries[0] == summaries[1]
    calls = [one for _, _, calls in summaries[0] for one in calls]
    assert {name for name, *_ in calls} == {"many.read", "one.use"}
    assert all(digest for _, _, digest, _ in calls)


def test_rows_that_are_computed_one_by_one_have_the_bits_of_one_process() -> None:
    found = []
    for make in (in_threads, lambda make: (make(), None)):
        flow, _ = make(functools.partial(parallel_flow.make_ddp, "dp3", 3, rows=16))
        with flow:
            ids = flow.fetch(16)
            called(flow, "gen.generate", ids)
            found.append(flow.values(ids, "y"))
    assert torch.equal(torch.stack(found[0]), torch.stack(found[1]))


@pytest.mark.parametrize(
    ("layouts", "group", "n"),
    [
        ("dp2,dp3", 1, 40),
        ("dp3 tp2,pp2 dp2", 2, 21),
        ("tp2,dp4", 3, 30),
        ("dp5,dp2 cp2", 2, 33),
        ("pp3 dp2,dp3 ep2", 1, 26),
    ],
)
def test_what_is_computed_row_by_row_trains_a_role_of_one_worker_as_one_process_does(
    layouts: str, group: int, n: int
) -> None:
    make = functools.partial(parallel_flow.make_rowwise, layouts, group, n)
    found = []
    for flow in (make(), in_threads(make)[0]):
        steps = summary(flow, None)
        found.append([(dropped, [one for one in calls if "train" in one[0]]) for _, dropped, calls in steps])
    assert found[0] == found[1]
    assert found[0][-1][0]["dull"] > 0


def test_ranks_without_a_group_enter_with_padding_that_is_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []

    def read(self: parallel_flow.Light, rows: df.Rows) -> Any:
        entered.append((self.mesh.rank("dp"), rows.ids, rows.is_padding, rows.weight))
        if all(rows.is_padding):
            rows.drop([0], "padding")
            rows.tags[0]["by"] = "padding"
            return {"z": "nothing that is a column"}
        return {"z": [0] * rows.n_rows, "n": 1.0}

    monkeypatch.setattr(parallel_flow.Light, "read", read)
    flow, _ = in_threads(functools.partial(make_read, "dp4", 4, rows=4))
    with flow:
        ids = flow.fetch(4)
        assert called(flow, "many.read", ids).numbers == {"n": 1.0}
        assert flow.values(ids, "z") == [0] * 4
        assert not any(flow._session.runner.master.rows.tags(row_id) for row_id in ids)
    assert sorted(rank for rank, *_ in entered) == [0, 1, 2, 3]
    assert sorted(weight for *_, weight in entered) == [0.0, 0.0, 2.0, 2.0]
    padded = [one for one in entered if any(one[2])]
    assert [(one[1], one[2]) for one in padded] == [((0, 1), [True, True])] * 2


def test_the_last_rows_are_padded_to_one_number_on_all_ranks() -> None:
    flow, workers = in_threads(functools.partial(parallel_flow.make_ddp, uneven="pad", n=6))
    sizes = []
    with flow:
        for step in flow.steps():
            sizes.append(step.n_rows)
            assert {"loss", "weight"} <= set(step["actor.train"])
    assert sizes == [8, 4]
    slices = [one.part for _, one in mains(workers) if one.function == "actor.train"]
    assert {one.n_rows for one in slices if one is not None} == {4}
    assert sorted(one.n_real for one in slices if one is not None) == [2, 2, 4, 4]


def test_a_failure_of_one_rank_fails_the_call_and_names_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: parallel_flow.Light, rows: df.Rows) -> Any:
        if self.mesh.rank("dp") == 1:
            raise ValueError("no such number")
        return {"z": [0] * rows.n_rows}

    monkeypatch.setattr(parallel_flow.Light, "read", read)
    flow, workers = in_threads(functools.partial(make_read, "dp2", 2))
    with flow:
        ids = flow.fetch(8)
        with pytest.raises(FlowError, match=r"many.read failed on worker 1 on 8 rows .*ValueError: no such"):
            called(flow, "many.read", ids)
        while flow._session.runner.advance(automatic=False, timeout_s=0.5):
            pass
        # What the other rank has made is dropped with its rows.
        assert "z" not in flow._session.runner.held.columns(ids[0])
        flow.clear_data_cache(ids)
        loop = workers.workers[0]._loop
        assert loop is not None
        store = loop.store
        while store.n_bytes:
            assert flow.ask("inside")


def test_the_end_of_a_worker_says_more_than_what_its_peer_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer's failure arrives first."""
    has_ended = threading.Event()

    def read(self: parallel_flow.Light, rows: df.Rows) -> Any:
        if self.mesh.rank("dp") == 0:
            raise RuntimeError("connection closed by peer")
        assert has_ended.wait(45)
        return {}

    monkeypatch.setattr(parallel_flow.Light, "read", read)
    flow, workers = in_threads(functools.partial(make_read, "dp2", 2))
    hub, receive, failures = workers.hub, workers.hub.receive, []

    def receive_late(timeout_s: float) -> Any:
        if failures:
            hub.kill(1)
            has_ended.set()
        events = receive(timeout_s)
        messages = [one.message for one in events if isinstance(one, Received)]
        failures.extend(one for one in messages if isinstance(one, Result) and one.failure)
        return events

    monkeypatch.setattr(hub, "receive", receive_late)
    with flow:
        call = post(flow, "many.read", flow.fetch(8))
        with pytest.raises(FlowError, match=f"call {call.number} of many.read failed: worker 1 is lost"):
            call.result(timeout_s=45)


def test_checkpoints_of_workers_without_a_process_group_are_refused(tmp_path: Path) -> None:
    flow, _ = in_threads(functools.partial(parallel_flow.make_ddp, folder=str(tmp_path)))
    with (
        pytest.raises(FlowError, match=r"role 'actor' is on workers \[0, 1\], which have no process group"),
        flow,
    ):
        next(flow.steps(1))
    assert not list(tmp_path.iterdir())


def test_replicas_show_each_tensor_once_and_it_reaches_each_worker_of_the_target() -> None:
    def shifted() -> df.Flow:
        # Without a process group, replicas are equal where they get the same rows.
        actor = df.place(parallel_flow.Model, "tp2", on=[0, 1], name="actor")
        gen = df.place(parallel_flow.Model, "dp3", on=[1, 2, 3], follows=actor, name="gen")
        average = df.place(parallel_flow.Model, "dp2", on=[0, 3], name="average")
        after = [df.publish(gen), df.param_realloc(actor, average, eta=0.5), df.evaluate()]
        calls = [
            df.call(gen.generate, "x -> y", rows=6, after=[df.hook(parallel_flow.note)]),
            df.call(actor.train, "x, y", rows=6, after=after),
        ]
        return df.Flow(calls, source=parallel_flow.numbers())

    flow, workers = in_threads(shifted)
    with flow:
        list(flow.steps(2))
        for name, places in (("gen", (1, 2, 3)), ("average", (0, 3))):
            role, found = role_of(flow, name), []
            for worker in places:
                loop = workers.workers[worker]._loop
                assert loop is not None
                found.append(loop._objects[role].net.weight.tolist())
            assert all(one == found[0] for one in found)
        shown = {
            (one.ticket, one.shown.worker, region.name)
            for _, one in workers.hub.sent
            if isinstance(one, State)
            for region in one.shown.layout.regions
        }
        assert {worker for _, worker, _ in shown} == {0, 1}
        assert len(shown) == len({(ticket, name) for ticket, _, name in shown})
