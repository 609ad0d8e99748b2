"""The programs of docs/coordination.md run, with workers that are killed between their part of a checkpoint and its end."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from coordinator_process import Cluster, Coordinator
from page_worker import new_model, rows
from waiting import Lines

SCRIPT = str(Path(__file__).with_name("page_worker.py"))


def start(cluster: Cluster, coordinator: Coordinator, seat: int, **options: Any) -> Lines:
    """Start a worker."""
    chosen = {"address": coordinator.address, "seat": seat, **options}
    return cluster.add(Lines([SCRIPT, json.dumps(chosen)]))


def undisturbed(n_steps: int) -> torch.Tensor:
    """Return the weights after steps of one process with whole batches."""
    model, optimizer = new_model()
    for step in range(1, n_steps + 1):
        model(rows(step)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


def last_path(coordinator: Coordinator) -> str:
    """Return the name of the last complete checkpoint."""
    return Path(coordinator.status().checkpoint.path).name


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_worker_that_is_killed_in_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--world-size", "2", "--rejoin-timeout", "30")
    folder = str(tmp_path)
    lives = start(cluster, coordinator, 0, n_steps=30, folder=folder)
    victim = start(cluster, coordinator, 1, n_steps=30, folder=folder, dies_at=20)
    lives.event("joined")
    assert victim.wait() == -signal.SIGKILL
    # All parts are there, but not all members have said so.
    assert (tmp_path / "1-20" / ".metadata").exists()
    assert last_path(coordinator) == "1-10"
    again = start(cluster, coordinator, 1, n_steps=30, folder=folder)
    assert again.event("joined")["committed"] == 20, "it has copied the weights of the other one"
    ends = [worker.event("end") for worker in (lives, again)]
    for end in ends:
        assert end["committed"] == 30
        torch.testing.assert_close(torch.tensor(end["weights"]), undisturbed(30))
    assert last_path(coordinator) == "2-30"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_workers_that_are_all_lost_load_the_parts_of_others(cluster: Cluster, tmp_path: Path) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2", "--form-timeout", "0.5")
    folder = str(tmp_path)
    workers = [start(cluster, coordinator, seat, n_steps=10**6, folder=folder) for seat in range(2)]
    coordinator.status(lambda status: status.checkpoint is not None and status.checkpoint.step >= 20)
    for worker in workers:
        worker.process.kill()
        worker.wait()
    step = int(last_path(coordinator).rpartition("-")[2])
    alone = start(cluster, coordinator, 0, n_steps=step + 10, folder="")
    joined = alone.event("joined")
    assert joined["committed"] == step
    torch.testing.assert_close(torch.tensor(joined["weights"]), undisturbed(step))
