"""A worker that joins copies the state of one other; if either dies meanwhile, the others go on with the same weights."""

from __future__ import annotations

import pytest
from coordinator_process import Cluster, Coordinator
from trainers import Start, Trainer, check_steps, until_size

#: At the start the source sends the weights; to a worker that joins, also what Adam keeps, three tensors.
AT_START, WITH_ADAM = 1, 4


@pytest.fixture
def coordinator(cluster: Cluster) -> Coordinator:
    """The coordinator of a job of three to five workers."""
    return cluster.coordinator("--min-workers", "3", "--max-workers", "5", "--form-timeout", "0.5")


def begin(start: Start, coordinator: Coordinator, number: int, **options: int) -> Trainer:
    """Start a worker that makes steps until the test ends."""
    return start(coordinator, number, n_steps=10**9, model_seed=number, pause_s=0.005, **options)


@pytest.mark.parametrize("engine", ["memory", "gloo"], indirect=True)
def test_a_source_that_dies_while_another_worker_copies(coordinator: Coordinator, start: Start) -> None:
    source = begin(start, coordinator, 0, dies_in_copy=AT_START + WITH_ADAM - 1)
    trainers = [begin(start, coordinator, number) for number in (1, 2)]
    until_size(source, 3)
    trainers.append(begin(start, coordinator, 3))
    joined = trainers[-1].event("joined")
    assert joined["size"] == 3, "without the source"
    assert joined["committed"] > 0
    for trainer in trainers:
        until_size(trainer, 3)
    check_steps(trainers)


def test_a_worker_that_dies_while_it_copies(coordinator: Coordinator, start: Start) -> None:
    trainers = [begin(start, coordinator, number) for number in range(3)]
    until_size(trainers[0], 3)
    dies = begin(start, coordinator, 3, dies_in_copy=WITH_ADAM - 1)
    while "it has ended" not in dies.events(waits=True):
        pass
    trainers.append(begin(start, coordinator, 3))
    for trainer in trainers:
        until_size(trainer, 4)
    check_steps(trainers)


def test_two_workers_that_come_one_after_the_other(coordinator: Coordinator, start: Start) -> None:
    trainers = [begin(start, coordinator, number) for number in range(3)]
    until_size(trainers[0], 3)
    trainers += [begin(start, coordinator, number) for number in (3, 4)]
    for trainer in trainers:
        until_size(trainer, 5)
    check_steps(trainers)
