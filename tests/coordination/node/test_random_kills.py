"""Random kills of workers and coordinators: no step is lost or made twice, and weights are those of a replay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from coordinator_process import Cluster
from kill_run import KillRun
from trainers import Start

# With 100 kills in each, 20 seeds are 2,000 kills. To go on after a seed: -k "memory and 7".
SEEDS = range(20)


def kill(cluster: Cluster, start: Start, engine: str, seed: int, n_kills: int, folder: Path) -> None:
    began_s = time.monotonic()
    # If one of two workers is killed, what becomes of a step depends on the other one alone.
    run = KillRun(cluster, start, engine, seed, folder, n_workers=2 if seed % 4 == 3 else 4)
    run.kill(n_kills)
    took_s = time.monotonic() - began_s
    print(
        f"{engine}, seed {seed}: {run.n_kills} kills in {took_s:.1f} s, {60 * run.n_kills / took_s:.0f} a minute; "
        + ", ".join(f"{number} of {kind}" for kind, number in run.kinds.items())
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("engine", "seed", "n_kills"),
    [
        ("memory", 1000, 8),
        pytest.param("memory", 1003, 15, marks=pytest.mark.full),
        pytest.param("nodes", 1000, 10, marks=pytest.mark.full),
    ],
)
def test_kills(cluster: Cluster, start: Start, engine: str, seed: int, n_kills: int, tmp_path: Path) -> None:
    kill(cluster, start, engine, seed, n_kills, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ["memory", "link", "nodes"])
def test_a_hundred_kills(cluster: Cluster, start: Start, engine: str, seed: int, tmp_path: Path) -> None:
    kill(cluster, start, engine, seed, 100, tmp_path)
