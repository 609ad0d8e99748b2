"""Collectives of the user's own in the body of a step: a loss that they meet ends the step, and it is made again."""

from __future__ import annotations

import signal

import pytest
from coordinator_process import Cluster
from trainers import Start, by_engine, check, check_steps, until_size

AT = {"check": "lost_in_a_call", "checks_at": 5}


@by_engine("gloo", "nodes")
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


@by_engine("gloo", "memory")
def test_a_worker_is_stopped_while_others_wait_for_it_in_the_body(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--min-workers", "2", "--max-workers", "3", "--form-timeout", "0.5")
    endless = {"n_steps": 100_000, "pause_s": 0.005, **AT}
    trainers = [start(coordinator, one, **endless) for one in range(2)]
    stops = start(coordinator, 2, signal=int(signal.SIGSTOP), **endless)
    until_size(trainers[0], 3)
    until_size(trainers[0], 2)
    stops.signal(signal.SIGCONT)
    for trainer in [*trainers, stops]:
        until_size(trainer, 3)
    check_steps([*trainers, stops])


@by_engine("memory")
def test_ranks_that_make_different_calls_go_on(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    trainers = [start(coordinator, one, n_steps=5, check="different_calls") for one in range(2)]
    check(trainers, 5)
    assert all(step["is_committed"] for step in trainers[0].steps)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_loss_of_which_the_coordinator_knows_nothing_is_the_users(cluster: Cluster, start: Start) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2", "--form-timeout", "0.2")
    other = start(coordinator, 0, n_steps=100_000, pause_s=0.005)
    fails = start(coordinator, 1, n_steps=100_000, check="fails_for_another_reason")
    assert "a group of the user's own has lost a rank" in fails.event("error")["text"]
    until_size(other, 1)
    check_steps([other])
