"""Flows on several hosts with a journal: workers and masters are killed, and the weights have the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_forks
from host_workers import HostWorkers
from journal_flow import same, weights_of
from masters import PacedRun
from waiting import WATCHDOG_S

N = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def undisturbed(folder: Path, n_workers: int) -> Any:
    """Run all on one host, in forks; random numbers of a process are those of its roles."""
    flow, _ = in_forks("journal_flow", "make_flow", folder=str(folder / "undisturbed"), n_workers=n_workers)
    torch.manual_seed(3)
    with flow:
        list(flow.steps(N))
    return weights_of(folder / "undisturbed", n_workers=n_workers)


@pytest.mark.full
@pytest.mark.timeout(4 * WATCHDOG_S)
def test_a_program_waits_for_the_next_master_by_itself(tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path / "j"), "n_workers": 1}
    with HostWorkers(tmp_path, "journal_flow:make_flow", arguments) as workers:
        command = [sys.executable, "-m", "softs_fast", "flow", "worker", workers.endpoint, workers.function]
        command += f"--rank 0 --token-file {workers.token} --argument n_workers=1".split()
        command += ["--argument", f"folder={tmp_path / 'j'}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(tmp_path / "log", "wb") as log:
            program = subprocess.Popen(command, env=environment, stderr=log)
        try:
            run = PacedRun(workers, N, tmp_path / "steps")
            run.run_until(2, then=3)
            run.kill_master()
            run.start()
            assert run.end() == 0
            assert program.wait(WATCHDOG_S) == 0
        finally:
            program.kill()
            program.wait()
    text = (tmp_path / "log").read_text()
    assert re.search(r"worker 0 has lost its master: the master has ended: .*; it begins anew", text)
    assert text.count("worker 0 has begun") == 2
    assert same(weights_of(tmp_path / "j", n_workers=1), undisturbed(tmp_path, 1))
