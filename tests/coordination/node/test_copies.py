"""A worker that joins copies the state of one other, which goes on; if either dies meanwhile, all have the same weights."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from coordinator_process import Cluster, Coordinator
from trainers import Start, Trainer, check_steps, until_size
from waiting import eventually

#: Tensors that a worker receives at the start, and that a snapshot has. The next one has the gradients of a step.
AT_START, SNAPSHOT = 2, 8


@pytest.fixture
def coordinator(cluster: Cluster, request: pytest.FixtureRequest) -> Coordinator:
    """The coordinator of a job of three to five workers; its parameter is `--form-timeout`."""
    seconds = getattr(request, "param", "0.5")
    return cluster.coordinator("--min-workers", "3", "--max-workers", "5", "--form-timeout", seconds)


# A follower that waits for a core for as long as the time-out copies with all others.
is_patient = pytest.mark.parametrize("coordinator", ["5"], indirect=True, ids=["patient"])


def begin(start: Start, coordinator: Coordinator, number: int, **options: Any) -> Trainer:
    """Start a worker that makes steps until the test ends."""
    # A follower may wait for a core while others make hundreds of steps.
    options.setdefault("free_bytes", 1 << 30)
    return start(coordinator, number, n_steps=10**9, model_seed=number, pause_s=0.02, **options)


def three(start: Start, coordinator: Coordinator, **options: int) -> list[Trainer]:
    trainers = [begin(start, coordinator, number, **options) for number in range(3)]
    until_size(trainers[0], 3)
    return trainers


@is_patient
@pytest.mark.parametrize("engine", ["memory", "link"], indirect=True)
def test_members_make_steps_while_another_worker_copies(coordinator: Coordinator, start: Start) -> None:
    trainers = three(start, coordinator)
    trainers.append(begin(start, coordinator, 3))
    joined = trainers[-1].event("joined")
    assert (joined["size"], joined["followers"]) == (4, 1)
    for trainer in trainers:
        until_size(trainer, 4)
    check_steps(trainers)
    assert all(step["is_committed"] for trainer in trainers for step in trainer.steps), "nothing has failed"


@is_patient
def test_a_follower_with_other_weights_copies_again_before_its_first_step_counts(
    coordinator: Coordinator, start: Start
) -> None:
    trainers = three(start, coordinator)
    trainers.append(begin(start, coordinator, 3, replays_wrongly=True))
    assert trainers[-1].event("joined")["followers"] == 1
    for trainer in trainers:
        until_size(trainer, 4)
    check_steps(trainers)
    assert [step["is_committed"] for step in trainers[-1].steps][:2] == [False, True]


def test_a_follower_that_is_stopped_holds_up_no_one_and_one_that_is_slow_is_waited_for(
    coordinator: Coordinator, start: Start
) -> None:
    # No step fits beside the snapshot, so a copy ends with its first one.
    trainers = three(start, coordinator, free_bytes=-(10**6))
    trainers.append(begin(start, coordinator, 3, in_copy=(SNAPSHOT - 1, signal.SIGSTOP)))
    state = Path(f"/proc/{trainers[-1].process.pid}/stat")
    eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the follower is stopped")
    stopped_s = time.monotonic()
    while trainers[0].next_step()["at"] < stopped_s:
        pass
    assert {trainers[0].next_step()["epoch"] for _ in range(50)} == {trainers[0].steps[0]["epoch"]}
    trainers[-1].signal(signal.SIGCONT)
    joined = trainers[-1].event("joined")
    assert (joined["size"], joined["followers"]) == (4, 0)
    for trainer in trainers:
        until_size(trainer, 4)
    check_steps(trainers)
    assert all(step["is_committed"] for trainer in trainers for step in trainer.steps), "nothing has failed"


@pytest.mark.parametrize(
    ("engine", "dies"),
    [
        ("memory", SNAPSHOT - 1),
        ("memory", SNAPSHOT),
        pytest.param("link", SNAPSHOT, marks=pytest.mark.full),
    ],
    indirect=["engine"],
)
def test_a_source_that_dies_while_another_worker_copies(
    coordinator: Coordinator, start: Start, dies: int
) -> None:
    # The member with the highest rank serves its state.
    trainers = [begin(start, coordinator, number) for number in range(2)]
    source = begin(start, coordinator, 2, in_copy=(AT_START + dies, signal.SIGKILL))
    until_size(source, 3)
    trainers.append(begin(start, coordinator, 3))
    joined = trainers[-1].event("joined")
    assert joined["size"] == 3, "without the source"
    assert joined["committed"] > 0
    for trainer in trainers:
        until_size(trainer, 3)
    check_steps(trainers)


def test_workers_that_die_while_they_copy(coordinator: Coordinator, start: Start) -> None:
    trainers = three(start, coordinator)
    for dies in (SNAPSHOT - 1, SNAPSHOT):
        follower = begin(start, coordinator, 3, in_copy=(dies, signal.SIGKILL))
        while "it has ended" not in follower.events(waits=True):
            pass
    trainers.append(begin(start, coordinator, 3))
    for trainer in trainers:
        until_size(trainer, 4)
    check_steps(trainers)
    assert all(step["is_committed"] for trainer in trainers for step in trainer.steps), "nothing has failed"


def test_two_workers_that_come_one_after_the_other(coordinator: Coordinator, start: Start) -> None:
    trainers = three(start, coordinator)
    trainers += [begin(start, coordinator, number) for number in (3, 4)]
    for trainer in trainers:
        until_size(trainer, 5)
    check_steps(trainers)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_random_kills_while_workers_copy(cluster: Cluster, start: Start, seed: int) -> None:
    chance = random.Random(seed)
    coordinator = cluster.coordinator("--min-workers", "2", "--max-workers", "4", "--form-timeout", "0.3")
    trainers = {number: begin(start, coordinator, number) for number in range(3)}
    until_size(trainers[0], 3)
    every = list(trainers.values())
    for turn in range(12):
        free = min(set(range(4)) - set(trainers))
        trainers[free] = begin(start, coordinator, free)
        every.append(trainers[free])
        # Some part of the copy.
        time.sleep(0.5 + 1.2 * chance.random())
        victim = chance.choice([free, free, *trainers])
        trainers[victim].signal(signal.SIGKILL)
        trainers.pop(victim).process.join()
        if turn % 3 == 2:
            until_size(next(iter(trainers.values())), len(trainers))
    for trainer in trainers.values():
        until_size(trainer, 3)
    check_steps([trainer for trainer in every if trainer.steps])
