"""`Flow.in_processes`: a fleet starts the workers of a flow, and ends those that others have left waiting."""

from __future__ import annotations

import os
import signal
from typing import Any

import flows
import pytest
from flows import calls_of

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError

#: What workers print is no result of pytest's.
pytestmark = pytest.mark.usefixtures("capfd")


@pytest.mark.full
def test_a_flow_in_processes_of_which_one_dies_twice() -> None:
    expected = flows.summary(flows.make_light(), 3)
    with df.Flow.in_processes("flows:make_light", max_restarts=1) as flow:
        steps = calls_of(flow.steps(2))
        pids = {flow.ask("inside")[1]["pid"]}
        assert all(os.getpgid(pid) for pid in pids)
        os.kill(*pids, signal.SIGKILL)
        steps += calls_of(flow.steps(1))
        assert flow.ask("stats")["restarts"] == 1
        pid = flow.ask("inside")[1]["pid"]
        assert pid not in pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            FlowError, match=f"worker 1 is lost: process {pid}: its process ended: signal SIGKILL"
        ):
            list(flow.steps(2))
    assert steps == expected


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (
            "flows:make_broken",
            {},
            r"(?s)the workers of the flow could not begin: .*in setup.*OSError: no such model",
        ),
        # The other one waits for it.
        (
            "parallel_flow:make_mortal",
            {"place": "setup"},
            "could not begin: worker 1 failed: its process ended: signal SIGKILL",
        ),
    ],
)
def test_a_worker_that_cannot_begin_is_named(function: str, arguments: dict[str, Any], text: str) -> None:
    flow = df.Flow.in_processes(function, arguments)
    with pytest.raises(FlowError, match=text), flow:
        pass


def test_a_worker_that_dies_in_a_collective_call_ends_the_flow_by_name() -> None:
    flow = df.Flow.in_processes("parallel_flow:make_mortal", {"place": "call 2"})
    with flow:
        config = flow.ask("model_config", role=flow.declaration.roles[0])
        assert (config["names"], config["has_group"]) == (["dp"], True)
        assert next(flow.steps(1))["mortal.read"]["sum"] == 2.0
        pids = {worker: one["pid"] for worker, one in flow.ask("inside").items()}
        with pytest.raises(
            FlowError,
            match=rf"worker 1 is lost: process {pids[1]}: its process ended: signal SIGKILL.*; ticket \d+, main of mortal.read",
        ):
            list(flow.steps(1))
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_is_no_flow_of_processes_is_refused_before_anything_runs() -> None:
    for name, arguments, complaint in (
        ("flows:numbers", {}, "flows:numbers returned a generator; need a Flow that is not open"),
        ("flows:nothing", {}, "'flows' has no 'nothing'"),
        ("flows", {}, "is not of the form package.module:function"),
        (
            "flows:make_flow",
            {"source": []},
            "argument source is a list; the function of a flow is called in each",
        ),
    ):
        with pytest.raises(ConfigError, match=complaint):
            df.Flow.in_processes(name, arguments)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"hook note .* different workers: first on \[0, 1\], second on \[1, 2\]"
    ):
        df.Flow.in_processes("parallel_flow:make_refused")
    with pytest.raises(ConfigError, match="max_restarts is -1; it counts failures in a row, from 0"):
        df.Flow.in_processes("flows:make_light", max_restarts=-1)
