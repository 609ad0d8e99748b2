"""The trace of a flow: a slice for each step on the track of its worker, arrows, rows; whatever ends it."""

from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from flow_processes import in_forks
from flows import make_flow

import softs_fast.dataflow as df
from softs_fast.dataflow.watch.trace import Trace
from softs_fast.errors import ConfigError, FlowError


def events_of(path: Path) -> list[dict[str, Any]]:
    """Read a trace as Perfetto does: the end of the array may be missing."""
    text = path.read_text().rstrip()
    whole = text if text.endswith("]") else f"{text.rstrip(',')}]"
    events: list[dict[str, Any]] = json.loads(whole)
    return events


def check(events: list[dict[str, Any]]) -> None:
    """What holds for every trace."""
    slices = [one for one in events if one["ph"] == "X"]
    by_track: dict[int, list[dict[str, Any]]] = {}
    for one in slices:
        assert one["dur"] >= 0
        by_track.setdefault(one["tid"], []).append(one)
    for own in by_track.values():
        own.sort(key=lambda one: one["ts"])
        for before, after in itertools.pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.01, "a worker does one thing at a time"
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    begins = {one["id"]: one for one in events if one["ph"] == "s"}
    assert set(begins) == set(ends)
    for number, begin in begins.items():
        assert begin["ts"] <= ends[number]["ts"]
        for end in (begin, ends[number]):
            assert any(
                one["ts"] - 0.01 <= end["ts"] <= one["ts"] + one["dur"] + 0.01 for one in by_track[end["tid"]]
            ), "an arrow hangs on a slice"


def test_processes_have_tracks_with_all_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    flow, _ = in_forks("flows", "make_flow", n_workers=2, trace=str(path))
    with flow:
        steps = list(flow.steps(2))
    events = events_of(path)
    check(events)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    names = {one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert names == {"worker 0", "worker 1", "the flow's own process"}
    slices = [one for one in events if one["ph"] == "X"]
    mains = [one for one in slices if one["cat"] == "main"]
    assert {one["name"] for one in mains} >= {"gen.generate", "scorer.score", "extra", "actor.train"}
    assert {one["name"] for one in slices if one["cat"] == "post"} >= {"publish", "note"}
    (train,) = [one for one in mains if one["name"] == "actor.train" and one["args"]["step"] == 1]
    (call,) = [one for one in steps[0].calls if one.function == "actor.train"]
    assert train["args"]["rows"] == len(call.ids)
    assert train["dur"] == pytest.approx(call.seconds["main"] * 1e6, abs=1.0)
    assert any(one["ph"] == "s" for one in events)
    assert any(one["ph"] == "C" and one["args"]["rows"] > 0 for one in events)


def test_one_process_has_the_same_tracks(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with make_flow(trace=path) as flow:
        list(flow.steps(2))
    check(events_of(path))
    assert {one["tid"] for one in events_of(path) if one["ph"] == "X"} == {1, 2, 3, 4}


def test_the_file_is_whole_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("what was here before, with mode 0644")
    with make_flow(n_workers=2, trace=path) as flow:
        n_events = []
        for _ in flow.steps(2):
            copy = tmp_path / "copy.json"
            copy.write_bytes(path.read_bytes())  # as if the process had been killed here
            n_events.append(len(events_of(copy)))
    assert 5 < n_events[0] < n_events[1] < len(events_of(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_death_leaves_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    flow, _ = in_forks("flows", "make_mortal", place="main", trace=str(path))
    with pytest.raises(FlowError, match="worker 1 is lost"), flow:
        list(flow.steps(1))
    check(events_of(path))


def test_makers_of_rows_are_kept_for_rows_that_live(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "run.json", group=2)
    for first in range(0, 1000, 4):
        trace.rows(0, 0.0, 1e-6, range(first, first + 4), ("x",), ("y",), 4)
        trace.drop(range(first, first + 4))
    assert not trace._made
    trace.close()
    trace.close()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"cannot write the trace .*/nowhere/run.json: No such file"),
        make_flow(n_workers=1, trace=tmp_path / "nowhere" / "run.json"),
    ):
        pass


def test_no_trace_is_written_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with df.Flow(make_flow(n_workers=1).declaration.calls, source=[{"x": 1.0}], group=2):
        pass
    assert not list(tmp_path.iterdir())
