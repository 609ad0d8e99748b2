"""kill -9 of a worker process in each phase: each open call has an answer that names worker, process and signal."""

from __future__ import annotations

import re

import pytest
from flow_processes import in_forks
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
