"""Trainings of several processes, of which some are killed, stopped, drained and started again: no step is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from coordinator_process import Cluster
from trainers import Start, by_engine, check, check_steps, until_size


# With memory it is one of the random kills; the last rank is killed in the body of a step below.
@pytest.mark.parametrize(
    ("engine", "number"),
    [("link", 0), *(pytest.param(*one, marks=pytest.mark.full) for one in (("link", 3), ("nodes", 0)))],
    indirect=["engine"],
)
def test_a_worker_that_is_killed_and_started_again(
    cluster: Cluster, start: Start, number: int, tmp_path: Path
) -> None:
    coordinator = cluster.coordinator("--world-size", "4")
    dies = {"check": "dies_once", "checks_at": 10, "victim": number, "folder": str(tmp_path)}
    trainers = [start(coordinator, one, n_steps=30, **dies) for one in range(4)]
    trainers[number].process.join()
    trainers[number] = start(coordinator, number, n_steps=30, model_seed=99, **dies)
    joined = trainers[number].event("joined")
    assert joined["epoch"] >= 2
    assert joined["committed"] >= 9
    check(trainers, 30)


@pytest.mark.parametrize(
    ("engine", "number"),
    [("link", 0), ("memory", 3), ("nodes", 3), pytest.param("link", 3, marks=pytest.mark.full)],
    indirect=["engine"],
)
def test_a_worker_that_is_stopped_is_left_behind(cluster: Cluster, start: Start, number: int) -> None:
    coordinator = cluster.coordinator(
        "--min-workers", "2", "--max-workers", "4", "--form-timeout", "1", "--lost-after", "2"
    )
    trainers = [start(coordinator, one, n_steps=100_000, pause_s=0.005) for one in range(4)]
    while trainers[number].next_step()["number"] < 10:
        pass
    trainers[number].signal(signal.SIGSTOP)
    until_size(trainers[1], 3)
    trainers[number].signal(signal.SIGCONT)
    until_size(trainers[1], 4)
    check_steps(trainers[1:2])


@by_engine("memory")
def test_a_worker_that_is_terminated_leaves_after_its_step(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    trainers = [start(coordinator, one, n_steps=100_000, pause_s=0.005) for one in range(2)]
    until_size(trainers[1], 2)
    trainers[1].signal(signal.SIGTERM)
    left = trainers[1].end()
    assert 0 < left["committed"] < 100_000
    until_size(trainers[0], 1)
    check_steps(trainers)
    assert all(step["is_committed"] for step in trainers[0].steps), "nothing has failed"


def test_a_worker_that_is_terminated_while_it_waits(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    alone = start(coordinator, 0, n_steps=10)
    alone.started()
    alone.signal(signal.SIGTERM)
    assert "leaves while it waits for an epoch: SIGTERM" in alone.event("error")["text"]


def test_an_error_in_the_body_ends_the_step_of_all(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    trainers = [
        start(coordinator, 0, n_steps=100, pause_s=0.005),
        start(coordinator, 1, n_steps=100, pause_s=0.005, fails_at=50),
    ]
    assert trainers[1].event("error")["text"] == "ValueError: a defect of the training"
    check(trainers[:1], 100)


def test_a_step_that_one_worker_cannot_apply_is_copied_from_another(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    trainers = [start(coordinator, 0, n_steps=10), start(coordinator, 1, n_steps=10, apply_fails_at=5)]
    check(trainers, 10)
    assert max(step["epoch"] for step in trainers[0].steps) == 2, "the other one has learned of it"


def test_workers_that_are_all_lost_go_on_from_the_last_checkpoint_of_which_all_files_are_whole(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    options = {"folder": str(tmp_path), "pause_s": 0.005}
    trainers = [start(coordinator, one, n_steps=10_000, **options) for one in range(2)]
    coordinator.status(lambda status: status.checkpoint is not None and status.checkpoint.step >= 20)
    for trainer in trainers:
        trainer.kill()
    path = coordinator.status().checkpoint.path
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 4
    Path(path).write_bytes(data)
    step = int(path.rpartition("-")[2]) - 10
    again = [start(coordinator, one, n_steps=step + 30, model_seed=50 + one, **options) for one in range(2)]
    for trainer in again:
        assert trainer.event("joined")["committed"] == step
    check(again, step + 30)


def test_a_checkpoint_that_one_worker_could_not_write_does_not_count(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    lives = start(coordinator, 0, n_steps=30, pause_s=0.01, folder=str(tmp_path))
    fails = start(coordinator, 1, n_steps=30, folder=str(tmp_path), ends_in_checkpoint=20)
    assert fails.event("error")["text"] == "ValueError: a defect of the storage"
    check([lives], 30)
    assert coordinator.status().checkpoint.step in (10, 30)


# --- Collectives of the user's own in the body of a step ---

AT = {"check": "lost_in_a_call", "checks_at": 5}


@by_engine("link", "nodes")
def test_a_worker_is_killed_while_others_wait_for_it_in_the_body(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--world-size", "3")
    trainers = [start(coordinator, one, n_steps=20, **AT) for one in range(2)]
    dies = start(coordinator, 2, n_steps=20, signal=int(signal.SIGKILL), **AT)
    while dies.next_step()["number"] < 4:
        pass
    dies.process.join()
    trainers.append(start(coordinator, 2, n_steps=20, model_seed=9, **AT))
    check(trainers, 20)
    for trainer in trainers[:2]:
        assert [step["number"] for step in trainer.steps if not step["is_committed"]] == [5]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_worker_is_killed_while_gradients_are_computed_and_reduced(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    coordinator = cluster.coordinator("--world-size", "3")
    options = {
        "n_steps": 9,
        "in_backward": 5,
        "calls": "dies_once",
        "victim": 2,
        "folder": str(tmp_path),
    }
    trainers = [start(coordinator, one, **options) for one in range(3)]
    trainers[2].process.join()
    trainers[2] = start(coordinator, 2, model_seed=9, **options)
    check(trainers, 9)
    for trainer in trainers[:2]:
        assert [step["number"] for step in trainer.steps if not step["is_committed"]] == [5]


@by_engine("memory")
def test_ranks_that_make_different_calls_go_on(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    trainers = [start(coordinator, one, n_steps=5, check="different_calls") for one in range(2)]
    check(trainers, 5)
    assert all(step["is_committed"] for step in trainers[0].steps)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_loss_of_which_the_coordinator_knows_nothing_is_the_users(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    other = start(coordinator, 0, n_steps=100_000, pause_s=0.005)
    fails = start(coordinator, 1, n_steps=100_000, check="fails_for_another_reason")
    assert "a group of the user's own has lost a rank" in fails.event("error")["text"]
    until_size(other, 1)
    check_steps([other])
