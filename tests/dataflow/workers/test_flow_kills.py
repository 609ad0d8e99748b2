"""kill -9 of a worker process in each phase: each open call has an answer that names worker, process and signal."""

from __future__ import annotations

import os
import re
import signal

import pytest
from flow_processes import in_forks, stop
from small_flow import make_flow, summary

from softs_fast.errors import FlowError

SHORT_S = 45.0


def test_real_processes_do_the_same_as_one() -> None:
    flow, _ = in_forks("small_flow", "make_flow", n_workers=2)
    assert summary(flow, 2) == summary(make_flow(n_workers=2), 2)


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("setup", ""),
        ("main", r"call \d of gen.generate"),
        ("hook", r"call \d of gen.generate"),
        ("evaluate", r"call \d of gen.generate"),
    ],
)
def test_a_worker_that_kills_itself(place: str, call: str) -> None:
    flow, workers = in_forks("small_flow", "make_mortal", place=place)
    with pytest.raises(FlowError) as caught, flow:
        next(flow.steps(1))
    text = str(caught.value)
    assert re.search(r"worker 1 is lost: process \d+: signal SIGKILL", text)
    assert re.search(call, text)
    assert not workers.processes


def test_a_worker_that_is_killed_while_it_waits() -> None:
    flow, workers = in_forks("small_flow", "make_mortal")
    with flow:
        assert next(flow.steps(1))["actor.read"]["sum"] != 0
        assert "gen.generate" in flow.explain()
        pid = workers.processes[1].pid
        os.kill(pid, signal.SIGKILL)
        workers.processes[1].join(SHORT_S)
        for _ in range(2):
            with pytest.raises(FlowError, match=f"worker 1 is lost: process {pid}: signal SIGKILL"):
                list(flow.steps(2))


def test_a_worker_that_is_killed_while_the_master_sends() -> None:
    flow, workers = in_forks("small_flow", "make_mortal")
    with flow:
        pid = workers.processes[1].pid
        stop(pid)
        ids = flow.fetch(8)
        calls = [flow.post("gen.generate", ids[:4]), flow.post("gen.generate", ids[4:])]
        flow.flush(*calls)
        with pytest.raises(
            TimeoutError, match=r"(?s)call \d of gen.generate has no answer.*inside: worker 1"
        ):
            calls[0].result(timeout_s=0.2)
        os.kill(pid, signal.SIGKILL)
        for call in calls:
            with pytest.raises(
                FlowError,
                match=f"call {call.number} of gen.generate failed: worker 1 is lost: process {pid}: signal SIGKILL",
            ):
                call.result(timeout_s=SHORT_S)
