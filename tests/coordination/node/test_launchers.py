"""Workers under real torchrun, which starts them again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from coordinator_process import Cluster
from trainers import undisturbed
from waiting import Lines, free_ports

SCRIPT = str(Path(__file__).with_name("launched_worker.py"))
TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def helpers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import modules of the tests, as pytest does."""
    helpers = [path for path in sys.path if Path(path).is_relative_to(TESTS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(helpers))


def torchrun(cluster: Cluster, *arguments: str) -> Lines:
    return cluster.add(Lines(["-m", "torch.distributed.run", *arguments]))


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
    first = [launched.event("joined") for _ in range(2)]
    assert sorted((one["rank"], one["committed"]) for one in first) == [(0, 0), (1, 0)]
    second = [launched.event("joined") for _ in range(2)]
    # torchrun has killed the other worker, too, so the weights are those of the checkpoint.
    assert sorted((one["rank"], one["committed"]) for one in second) == [(0, 20), (1, 20)]
    check_end([launched.event("end") for _ in range(2)])
    assert launched.wait() == 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_torchrun_for_each_worker_starts_it_again(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    [port] = free_ports()
    launched = [
        torchrun(
            cluster,
            "--nnodes=2",
            f"--node-rank={number}",
            "--nproc-per-node=1",
            "--master-addr=127.0.0.1",
            f"--master-port={port}",
            "--max-restarts=1",
            SCRIPT,
            coordinator.address,
            "1",
            str(tmp_path),
        )
        for number in range(2)
    ]
    lives, _ = (one.event("joined") for one in launched)
    again = launched[1].event("joined")
    assert again["committed"] == 24, "it has copied the weights of the other one"
    ends = [one.event("end") for one in launched]
    check_end(ends)
    assert ends[0]["pid"] == lives["pid"], "only the one that was killed was started again"
    assert [one.wait() for one in launched] == [0, 0]
