"""What watches a flow goes on when the flow has gone back to a common save, and when it cannot read the flow."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from pathlib import Path

import pytest
from flow_processes import in_forks

from softs_fast.dataflow.watch.thread import WatchThread
from softs_fast.monitoring.flow_status import flows

N = 6
WATCHDOG_S = 45.0


@pytest.fixture(autouse=True)
def _folder(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))


def test_status_and_trace_are_those_of_the_flow_after_it_has_gone_back(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    flow, _ = in_forks("journal_flow", "make_flow", folder=str(tmp_path / "j"), dies=f"train 4 {tmp_path}")
    flow._options = dataclasses.replace(flow._options, trace=path)
    with flow:
        assert next(reversed(list(flow.steps(N)))).number == N
        (view,) = flows(timeout_s=WATCHDOG_S)
    assert (tmp_path / "died-train").exists()
    assert view.steps == N
    events = json.loads(path.read_text())
    trained = [one["args"]["step"] for one in events if one["ph"] == "X" and "train" in one["name"]]
    assert max(trained) == N
    ends = {one["id"] for one in events if one["ph"] == "f"}
    assert ends == {one["id"] for one in events if one["ph"] == "s"}


def test_a_report_that_cannot_be_made_says_so_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done, n_reports, began_s = threading.Event(), 0, time.monotonic()

    def report(since_s: float, now_s: float) -> str:
        nonlocal n_reports
        n_reports += 1
        if n_reports == 1:
            raise RuntimeError("dictionary changed size during iteration")
        done.set()
        return "whole"

    with caplog.at_level(logging.WARNING):
        thread = WatchThread(dict, lambda: began_s, report, 0.01)
        try:
            assert done.wait(WATCHDOG_S)
        finally:
            thread.close()
    first, second = [one.getMessage() for one in caplog.records][:2]
    assert "more could not be read: RuntimeError('dictionary changed size" in first
    assert second == "whole"
