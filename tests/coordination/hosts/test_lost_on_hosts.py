"""Workers and the coordinator are killed and stopped in the middle of steps, on several hosts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from site_of_hosts import SiteOfHosts
from trainers import check_steps, until_size

ENDLESS = {"n_steps": 100_000, "pause_s": 0.005}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_is_lost_and_joins_again(site: SiteOfHosts, victim: int, number: signal.Signals) -> None:
    """Rank 0, which has another worker beside it, and one that is alone on its host."""
    site.coordinator("--min-workers", "2", "--max-workers", "3", "--form-timeout", "0.5")
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[one // 2], one, **ENDLESS) for one in range(3)]
    until_size(trainers[0], 3)
    trainers[victim].signal(number)
    until_size(trainers[1], 2)
    if number == signal.SIGKILL:
        check_steps([one for one in trainers if one.steps])
        trainers[victim] = site.trainer(hosts[victim // 2], victim, model_seed=9, **ENDLESS)
    else:
        trainers[victim].signal(signal.SIGCONT)
    until_size(trainers[1], 3)
    for trainer in trainers:
        until_size(trainer, 3)
    check_steps(trainers)


def test_the_coordinator_is_killed_and_so_is_a_worker_before_it_is_there_again(
    site: SiteOfHosts, tmp_path: Path
) -> None:
    options = (
        "--min-workers",
        "2",
        "--max-workers",
        "3",
        "--form-timeout",
        "0.5",
        "--reconnect-timeout",
        "2",
        "--state",
        str(tmp_path / "state"),
    )
    coordinator = site.coordinator(*options)
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[one // 2], one, **ENDLESS) for one in range(3)]
    until_size(trainers[0], 3)
    coordinator.kill()
    trainers[2].signal(signal.SIGKILL)
    site.coordinator(*options)
    until_size(trainers[0], 2)
    check_steps(trainers[:2])


def test_the_coordinator_is_stopped(site: SiteOfHosts) -> None:
    """Steps go on without it, and when it goes on."""
    coordinator = site.coordinator("--world-size", "3")
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[one // 2], one, **ENDLESS) for one in range(3)]
    begun = until_size(trainers[0], 3)["number"]
    coordinator.signal(signal.SIGSTOP)
    # For longer than connections live without an answer.
    while (step := until_size(trainers[0], 3))["number"] < begun + 300:
        assert step["epoch"] == 1
    coordinator.signal(signal.SIGCONT)
    for trainer in trainers:
        while until_size(trainer, 3)["number"] < begun + 350:
            pass
    check_steps(trainers)


def test_epochs_leave_no_shared_memory(site: SiteOfHosts) -> None:
    """Each fence ends with the memory of one epoch; without workers there is none."""
    site.coordinator("--min-workers", "2", "--max-workers", "3", "--form-timeout", "0.3")
    host = site.host()
    trainers = [site.trainer(host, one, **ENDLESS) for one in range(2)]
    used = []
    for turn in range(3):
        third = site.trainer(host, 2, model_seed=turn, **ENDLESS)
        until_size(trainers[0], 3)
        until_size(trainers[1], 3)
        used.append(host.shared_bytes())
        third.kill()
        until_size(trainers[0], 2)
    assert used == [used[0]] * 3
    assert used[0] > 0
    for trainer in trainers:
        trainer.kill()
    assert host.shared_bytes() == 0
