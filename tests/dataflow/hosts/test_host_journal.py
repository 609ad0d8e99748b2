"""Flows on several hosts with a journal: workers and masters are killed, and the weights have the same bits."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from host_workers import WATCHDOG_S, HostWorkers
from journal_flow import same, weights_of
from masters import be_master

N = 5


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield {
        n_workers: run_in_one(tmp_path_factory.mktemp("undisturbed") / "j", n_workers) for n_workers in (1, 3)
    }
    torch.set_num_threads(n_threads)


def run_in_one(folder: Path, n_workers: int) -> Any:
    """Run all on one host, in forks; random numbers of a process are those of its roles."""
    from flow_processes import in_forks

    flow, _ = in_forks("journal_flow", "make_flow", folder=str(folder), n_workers=n_workers)
    torch.manual_seed(3)
    with flow:
        list(flow.steps(N))
    return weights_of(folder, n_workers=n_workers)


@pytest.mark.parametrize(("place", "n"), [("train", 4), ("save", 12)])
def test_all_workers_begin_anew_if_one_with_training_state_is_killed(
    place: str, n: int, tmp_path: Path, undisturbed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"folder": str(tmp_path / "j"), "dies": f"{place} {n} {tmp_path}"}
    with HostWorkers(tmp_path, "journal_flow:make_flow", arguments) as workers:
        for worker, name in enumerate(("", "far", "far")):
            workers.start(worker, name, again=True)
        torch.manual_seed(3)
        with workers.flow() as flow:
            steps = list(flow.steps(N))
    assert (tmp_path / f"died-{place}").exists()
    assert sorted({step.number for step in steps}) == list(range(1, N + 1))
    assert same(weights_of(tmp_path / "j"), undisturbed[3])
    assert re.search(
        r"worker \d is lost: process \d+: its connection ended; ticket \d+, .* was open there.*; all workers start again "
        r"from the common save of step \d",
        caplog.text,
    )


def started_master(workers: HostWorkers, path: Path) -> Any:
    """Start a master; the type of a forkserver's process has no public name."""
    options = {"listen": workers.endpoint, "token_file": str(workers.token)}
    process = multiprocessing.get_context("forkserver").Process(
        target=be_master, args=(workers.function, workers.arguments, options, N, str(path))
    )
    process.start()
    return process


def await_steps(process: Any, path: Path, n: int) -> None:
    # Python and torch begin anew: on a loaded machine that takes long.
    give_up = time.monotonic() + 2 * WATCHDOG_S
    while not path.exists() or len(path.read_text().splitlines()) < n:
        assert process.is_alive()
        assert time.monotonic() < give_up
        time.sleep(0.005)


def end(process: Any) -> int:
    process.join(2 * WATCHDOG_S)
    code: int = process.exitcode
    process.close()
    return code


def test_a_master_that_is_killed_is_followed_by_another_one(tmp_path: Path, undisturbed: Any) -> None:
    path = tmp_path / "steps"
    with HostWorkers(tmp_path, "journal_flow:make_flow", {"folder": str(tmp_path / "j")}) as workers:
        for worker, name in enumerate(("", "far", "far")):
            workers.start(worker, name, again=True)
        for n_lines in (2, 4):
            master = started_master(workers, path)
            await_steps(master, path, n_lines)
            master.kill()
            assert end(master) == -signal.SIGKILL
        assert end(started_master(workers, path)) == 0
    assert same(weights_of(tmp_path / "j"), undisturbed[3])


@pytest.mark.full
@pytest.mark.timeout(4 * WATCHDOG_S)
def test_a_program_waits_for_the_next_master_by_itself(tmp_path: Path, undisturbed: Any) -> None:
    path, arguments = tmp_path / "steps", {"folder": str(tmp_path / "j"), "n_workers": 1}
    with HostWorkers(tmp_path, "journal_flow:make_flow", arguments) as workers:
        command = [
            sys.executable,
            "-m",
            "softs_fast",
            "flow",
            "worker",
            workers.endpoint,
            "journal_flow:make_flow",
        ]
        command += [
            "--rank",
            "0",
            "--token-file",
            str(workers.token),
            "--argument",
            f"folder={tmp_path / 'j'}",
        ]
        command += ["--argument", "n_workers=1"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(tmp_path / "log", "wb") as log:
            program = subprocess.Popen(command, env=environment, stderr=log)
        try:
            master = started_master(workers, path)
            await_steps(master, path, 2)
            master.kill()
            assert end(master) == -signal.SIGKILL
            assert end(started_master(workers, path)) == 0
            assert program.wait(WATCHDOG_S) == 0
        finally:
            program.kill()
            program.wait()
    text = (tmp_path / "log").read_text()
    assert re.search(r"worker 0 has lost its master: the master has ended: .*; it begins anew", text)
    assert text.count("worker 0 has begun") == 2
    assert same(weights_of(tmp_path / "j", n_workers=1), undisturbed[1])


def test_a_flow_says_that_its_workers_end(tmp_path: Path) -> None:
    with HostWorkers(tmp_path, "journal_flow:make_flow", {"n_workers": 1}) as workers:
        process = workers.start(0, "far")
        with workers.flow() as flow:
            list(flow.steps(1))
        process.join(WATCHDOG_S)
        assert process.exitcode == 0
