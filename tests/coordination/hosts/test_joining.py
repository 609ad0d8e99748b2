"""Workers on several hosts join in any order and number, and get the results of all."""

from __future__ import annotations

import random

import pytest
from site_of_hosts import SiteOfHosts
from trainers import check, check_steps, undisturbed, until_size


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_workers_of_hosts_of_different_sizes_join_in_any_order(site: SiteOfHosts, seed: int) -> None:
    """Only the coordinator knows the size. All that collectives must give is checked in a step."""
    site.coordinator("--world-size", "4")
    hosts = [site.host(), site.host()]
    # Three workers and one.
    places = [(number, hosts[number == 1]) for number in range(4)]
    random.Random(seed).shuffle(places)
    trainers = [
        site.trainer(host, number, n_steps=20, model_seed=number, check="all_results", checks_at=3)
        for number, host in places
    ]
    joined = {trainer.options["seat"]: trainer.event("joined") for trainer in trainers}
    assert {seat: (one["rank"], one["size"]) for seat, one in joined.items()} == {
        seat: (seat, 4) for seat in range(4)
    }
    check(trainers, 20)


def test_a_worker_that_comes_late(site: SiteOfHosts) -> None:
    # Within this the members must end the step in which they are, else it fails.
    site.coordinator("--min-workers", "2", "--max-workers", "3", "--form-timeout", "3")
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[number], number, n_steps=100_000, pause_s=0.01) for number in range(2)]
    while trainers[0].next_step()["number"] < 10:
        pass
    trainers.append(site.trainer(hosts[0], 2, n_steps=100_000, model_seed=7, pause_s=0.01))
    joined = trainers[2].event("joined")
    assert joined["size"] == 3
    assert joined["committed"] >= 10
    for trainer in trainers:
        until_size(trainer, 3)
    check_steps(trainers)
    assert all(step["is_committed"] for step in trainers[0].steps), "nothing has failed"


def test_a_second_process_of_a_worker_takes_its_place_once_the_first_is_gone(site: SiteOfHosts) -> None:
    site.coordinator("--world-size", "2", "--lost-after", "2")
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[number], number, n_steps=100_000, pause_s=0.01) for number in range(2)]
    while trainers[0].next_step()["number"] < 10:
        pass
    refused = site.trainer(hosts[0], 1, n_steps=100_000, model_seed=5, pause_s=0.01)
    assert 'worker "w1" is connected as another process' in refused.over()["text"]
    trainers[1].kill()
    second = site.trainer(hosts[0], 1, n_steps=100_000, model_seed=5, pause_s=0.01)
    joined = second.event("joined")
    assert joined["committed"] >= 9
    for trainer in (trainers[0], second):
        while until_size(trainer, 2)["epoch"] < joined["epoch"]:
            pass
    check_steps([trainers[0], second])


def test_tensors_of_100_mib(site: SiteOfHosts) -> None:
    site.coordinator("--world-size", "3")
    hosts = [site.host(), site.host()]
    trainers = [
        site.trainer(hosts[number // 2], number, n_steps=4, check="large_tensors", checks_at=2)
        for number in range(3)
    ]
    check(trainers, 4)


def slow_rank(site: SiteOfHosts, n_steps: int, rank: int, engine: str) -> None:
    """No worker gets the sum of another step than its own, however late one of them is."""
    site.coordinator("--world-size", "3")
    hosts = [site.host(), site.host()]
    trainers = [
        site.trainer(hosts[number // 2], number, n_steps=n_steps, check="slow", slow_rank=rank, engine=engine)
        for number in range(3)
    ]
    check(trainers, n_steps)
    assert len(trainers[0].steps) == n_steps
    assert {step["digest"] for step in trainers[0].steps} == set(undisturbed(n_steps).values())


@pytest.mark.parametrize(("engine", "n_steps"), [("memory", 100), ("link", 60)])
def test_many_steps_with_a_slow_root(site: SiteOfHosts, engine: str, n_steps: int) -> None:
    slow_rank(site, n_steps, 0, engine)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("engine", ["memory", "link"])
def test_ten_thousand_steps_with_a_slow_rank(site: SiteOfHosts, engine: str, rank: int) -> None:
    slow_rank(site, 10_000, rank, engine)


def test_epochs_leave_no_shared_memory(site: SiteOfHosts) -> None:
    """Each fence ends with the memory of one epoch; without workers there is none."""
    site.coordinator("--min-workers", "2", "--max-workers", "3", "--form-timeout", "0.3")
    host = site.host()
    trainers = [site.trainer(host, one, n_steps=100_000, pause_s=0.005) for one in range(2)]
    for trainer in trainers:
        until_size(trainer, 2)
    used = [host.shared_bytes()]
    for turn in range(2):
        third = site.trainer(host, 2, model_seed=turn, n_steps=100_000, pause_s=0.005)
        until_size(trainers[0], 3)
        until_size(trainers[1], 3)
        third.kill()
        until_size(trainers[0], 2)
        until_size(trainers[1], 2)
        used.append(host.shared_bytes())
    assert used == [used[0]] * 3
    assert used[0] > 0
    for trainer in trainers:
        trainer.kill()
    assert host.shared_bytes() == 0
