"""kill -9 of each process of a flow in turn, in one run: all steps are there, and the weights have the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flow_processes import in_forks
from host_workers import HostWorkers
from journal_flow import same, weights_of
from killed_flow import make_flow
from masters import PacedRun
from waiting import WATCHDOG_S

from softs_fast.dataflow.workers.host_meeting import HostMeeting


@pytest.fixture(scope="module", autouse=True)
def pipe_of_libuv() -> None:
    """The first store of a process makes a pipe for signals, which libuv keeps as long as the process."""
    HostMeeting("tcp://127.0.0.1:0").close()


def run_with_kills(workers: HostWorkers, n_workers: int, path: Path) -> None:
    """Run; after each step the next process is killed in the step after it, and the master is the last one."""
    n_steps = n_workers + 3
    run = PacedRun(workers, n_steps, path)
    killed = []
    for worker in range(n_workers):
        run.run_until(worker + 1, then=worker + 2)
        killed.append(run.kill_worker(worker))
    run.run_until(n_workers + 1, then=n_steps)
    run.kill_master()
    run.start()
    assert run.end() == 0
    assert sorted(set(run.steps())) == list(range(1, n_steps + 1))
    assert len(set(killed)) == n_workers


@pytest.mark.timeout(6 * WATCHDOG_S)
def test_all_processes_one_after_the_other_in_one_run(tmp_path: Path) -> None:
    n_steps = 6
    flow, _ = in_forks("killed_flow", "make_flow", folder=str(tmp_path / "undisturbed"))
    torch.manual_seed(3)
    with flow:
        list(flow.steps(n_steps))
    expected = weights_of(tmp_path / "undisturbed", make_flow)
    arguments = {"folder": str(tmp_path / "j")}
    with HostWorkers(tmp_path, "killed_flow:make_flow", arguments) as workers:
        for worker, name in enumerate(("", "far", "far")):
            workers.start(worker, name, again=True)
        run_with_kills(workers, 3, tmp_path / "steps")
    found = weights_of(tmp_path / "j", make_flow)
    assert {step for step, _, _ in found} == {n_steps}
    assert same(found, expected)
