"""What watches a flow goes on when the flow has gone back to a common save, and when it cannot read the flow."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from flow_processes import ForkedWorkers, in_forks
from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.watch.thread import WatchThread
from softs_fast.monitoring.flow_status import flows

N = 6


@pytest.fixture(autouse=True)
def _folder(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))


def _watched(flow: df.Flow, **options: Any) -> None:
    """Have a flow watched with other options."""
    watch = dataclasses.replace(flow._settings.watch, **options)
    flow._settings = dataclasses.replace(flow._settings, watch=watch)


def test_status_and_trace_are_those_of_the_flow_after_it_has_gone_back(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    flow, _ = in_forks("journal_flow", "make_flow", folder=str(tmp_path / "j"), dies=f"train 4 {tmp_path}")
    _watched(flow, trace=path)
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


def test_a_start_that_takes_longer_than_a_stall_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the start alone nothing is said, and a report of the time before does not end the flow."""
    flow, _ = in_forks("journal_flow", "make_flow", folder=str(tmp_path / "j"), dies=f"train 4 {tmp_path}")
    _watched(flow, watchdog_s=WATCHDOG_S, on_stall="abort")
    real, n_starts = ForkedWorkers.start, 0

    def start(self: ForkedWorkers) -> Any:
        nonlocal n_starts
        n_starts += 1
        if n_starts > 1:
            flow._backend.doing.inside_s = flow._session.runner.answered_s = time.monotonic() - 1000
            for _ in range(2):  # the second answer comes after what is to be said
                flows(timeout_s=WATCHDOG_S)
            assert flow._session._watch is not None
            flow._session._watch._thread.last = (time.monotonic() - 1000, "of the time before")
        return real(self)

    monkeypatch.setattr(ForkedWorkers, "start", start)
    with flow:
        assert next(reversed(list(flow.steps(N)))).number == N
    assert n_starts == 2
    assert not [one for one in caplog.records if "no call of the flow has ended" in one.getMessage()]


def test_a_process_with_many_descriptors_has_reports_and_a_status() -> None:
    said, before = threading.Event(), resource.getrlimit(resource.RLIMIT_NOFILE)
    began_s = time.monotonic()

    def report(since_s: float, now_s: float) -> str:
        said.set()
        return "quiet"

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        thread = WatchThread(dict, lambda: began_s, report, 0.01)
        try:
            assert said.wait(WATCHDOG_S)
            (view,) = flows(timeout_s=WATCHDOG_S)
            assert "its status (2 bytes)" in view.error  # it was answered
        finally:
            thread.close()
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
