"""`Flow.in_processes`: a fleet starts the workers of a flow."""

from __future__ import annotations

import os
import signal

import pytest
import small_flow
from small_flow import calls_of

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError


@pytest.mark.full
def test_a_flow_in_processes_of_which_one_dies_twice(capfd: pytest.CaptureFixture[str]) -> None:
    expected = small_flow.summary(small_flow.make_light(), 3)
    with df.Flow.in_processes("small_flow:make_light", max_restarts=1) as flow:
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
    capfd.readouterr()


def test_a_role_that_cannot_be_set_up_is_named_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    flow = df.Flow.in_processes("small_flow:make_broken")
    with (
        pytest.raises(
            FlowError,
            match=r"(?s)the workers of the flow could not begin: .*in setup.*OSError: no such model",
        ),
        flow,
    ):
        pass
    capfd.readouterr()


def test_what_is_no_function_of_a_flow_is_refused() -> None:
    for name, arguments, complaint in (
        ("small_flow:numbers", {}, "small_flow:numbers returned a generator; need a Flow that is not open"),
        ("small_flow:nothing", {}, "'small_flow' has no 'nothing'"),
        ("small_flow", {}, "is not of the form package.module:function"),
        (
            "small_flow:make_flow",
            {"source": []},
            "argument source is a list; the function of a flow is called in each",
        ),
    ):
        with pytest.raises(ConfigError, match=complaint):
            df.Flow.in_processes(name, arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_restarts is -1; it counts failures in a row, from 0"):
        df.Flow.in_processes("small_flow:make_light", max_restarts=-1)
