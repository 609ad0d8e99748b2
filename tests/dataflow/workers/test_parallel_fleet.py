"""`Flow.in_processes` with a role on several workers: a fleet starts them, and ends those that others have left waiting."""

from __future__ import annotations

import os

import pytest

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError


def test_a_worker_that_dies_in_a_collective_call_ends_the_flow_by_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    flow = df.Flow.in_processes("parallel_flow:make_waiting")
    with flow:
        config = flow.ask("model_config", role=flow.declaration.roles[0])
        assert (config["names"], config["has_group"]) == (["dp"], True)
        assert next(flow.steps(1))["waiting.read"]["sum"] == 2.0
        pids = {worker: one["pid"] for worker, one in flow.ask("inside").items()}
        with pytest.raises(
            FlowError,
            match=rf"worker 1 is lost: process {pids[1]}: its process ended: signal SIGKILL.*; ticket \d+, main of waiting.read",
        ):
            list(flow.steps(1))
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    capfd.readouterr()


def test_a_worker_that_dies_in_setup_is_named_and_not_those_that_wait_for_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    flow = df.Flow.in_processes("parallel_flow:make_mortal", {"place": "setup", "n_workers": 2})
    with (
        pytest.raises(
            FlowError, match=r"could not begin: worker 1 failed: its process ended: signal SIGKILL"
        ),
        flow,
    ):
        pass
    capfd.readouterr()


def test_hooks_of_roles_on_other_workers_are_refused_before_anything_runs() -> None:
    with pytest.raises(
        ConfigError, match=r"hook note .* different workers: first on \[0, 1\], second on \[1, 2\]"
    ):
        df.Flow.in_processes("parallel_flow:make_refused")
