"""Workers under launchers: real torchrun, which starts them again, and SLURM by its environment."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from coordinator_process import Cluster, Lines
from trainers import undisturbed

SCRIPT = str(Path(__file__).with_name("launched_worker.py"))
TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def helpers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import modules of the tests, as pytest does."""
    helpers = [path for path in sys.path if Path(path).is_relative_to(TESTS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(helpers))


@pytest.fixture
def free_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(cluster: Cluster, *arguments: str) -> Lines:
    return cluster.add(Lines(["-m", "torch.distributed.run", *arguments]))


def events(process: Lines, name: str, n: int) -> list[dict[str, Any]]:
    """Return the next events of a name."""
    found: list[dict[str, Any]] = []
    while len(found) < n:
        event = json.loads(process.line())
        if event["event"] == name:
            found.append(event)
    return found


def check_end(ends: list[dict[str, Any]]) -> None:
    assert {(end["committed"], end["digest"]) for end in ends} == {(40, undisturbed(40)[40])}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_torchrun_starts_all_workers_of_its_node_again(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--world-size", "2", "--job", "run-7")
    options = ["--nproc-per-node=2", "--rdzv-id=run-7", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    launched = torchrun(
        cluster, *options, "--max-restarts=1", SCRIPT, coordinator.address, "1", str(tmp_path)
    )
    first = events(launched, "joined", 2)
    assert sorted((one["rank"], one["committed"]) for one in first) == [(0, 0), (1, 0)]
    second = events(launched, "joined", 2)
    # torchrun has killed the other worker, too, so the weights are those of the checkpoint.
    assert sorted((one["rank"], one["committed"]) for one in second) == [(0, 20), (1, 20)]
    check_end(events(launched, "end", 2))
    assert launched.wait() == 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_torchrun_for_each_worker_starts_it_again(cluster: Cluster, tmp_path: Path, free_port: int) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    launched = [
        torchrun(
            cluster,
            "--nnodes=2",
            f"--node-rank={number}",
            "--nproc-per-node=1",
            "--master-addr=127.0.0.1",
            f"--master-port={free_port}",
            "--max-restarts=1",
            SCRIPT,
            coordinator.address,
            "1",
            str(tmp_path),
        )
        for number in range(2)
    ]
    [lives], [_] = (events(one, "joined", 1) for one in launched)
    [again] = events(launched[1], "joined", 1)
    assert again["committed"] == 24, "it has copied the weights of the other one"
    ends = [*events(launched[0], "end", 1), *events(launched[1], "end", 1)]
    check_end(ends)
    assert ends[0]["pid"] == lives["pid"], "only the one that was killed was started again"
    assert [one.wait() for one in launched] == [0, 0]


@pytest.mark.full
@pytest.mark.timeout(120)
def test_tasks_of_slurm(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun is not here: only what it tells its tasks and the coordinator, which is another step of the job."""
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    coordinator = cluster.coordinator("--world-size", "2")
    tasks = []
    for number in range(2):
        monkeypatch.setenv("SLURM_PROCID", str(number))
        tasks.append(cluster.add(Lines([SCRIPT, coordinator.address, "-1", str(tmp_path)])))
    joined = [events(task, "joined", 1)[0]["rank"] for task in tasks]
    assert joined == [0, 1]
    check_end([events(task, "end", 1)[0] for task in tasks])
    assert [task.wait() for task in tasks] == [0, 0]
