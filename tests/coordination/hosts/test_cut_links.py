"""Links between hosts that are cut one way and both ways: the others go on in bounded time, and a mended host joins again."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from networks import Host
from site_of_hosts import SiteOfHosts
from trainers import check, check_steps, until_size

Link = Callable[[Host, Host], None]


def both_ways(host: Host, coordinator: Host) -> None:
    """Nothing passes."""
    host.cut()


def to_the_coordinator(host: Host, coordinator: Host) -> None:
    """The host hears the coordinator, which does not hear it."""
    host.silence(coordinator)


def from_the_coordinator(host: Host, coordinator: Host) -> None:
    """The coordinator hears the host, which does not hear it."""
    coordinator.silence(host)


def mend(host: Host, coordinator: Host) -> None:
    """Undo any of them."""
    host.mend()
    host.unsilence(coordinator)
    coordinator.unsilence(host)


@pytest.mark.parametrize(
    "cut",
    [
        both_ways,
        *(pytest.param(cut, marks=pytest.mark.full) for cut in (to_the_coordinator, from_the_coordinator)),
    ],
)
def test_a_host_that_cannot_be_reached_is_left_behind_and_joins_again(
    site: SiteOfHosts, cut: Link, record_property: Callable[[str, object], None]
) -> None:
    site.coordinator("--min-workers", "2", "--max-workers", "4", "--form-timeout", "0.5", "--lost-after", "2")
    hosts = [site.host(), site.host()]
    trainers = [
        site.trainer(hosts[number // 2], number, n_steps=100_000, pause_s=0.01) for number in range(4)
    ]
    until_size(trainers[0], 4)
    cut_at = time.monotonic()
    cut(hosts[1], site.first)
    step = until_size(trainers[0], 2)
    record_property("seconds from the cut to the first committed step", step["at"] - cut_at)
    mend(hosts[1], site.first)
    until_size(trainers[0], 4)
    until_size(trainers[3], 4)
    check_steps(trainers)


def test_hosts_that_reach_the_coordinator_but_not_each_other(
    site: SiteOfHosts, record_property: Callable[[str, object], None]
) -> None:
    """The kernels find that nothing is acknowledged: the epoch ends, and steps go on when the link is mended."""
    coordinator = site.coordinator("--world-size", "2")
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[number], number, n_steps=100_000, pause_s=0.01) for number in range(2)]
    until_size(trainers[0], 2)
    until_size(trainers[1], 2)
    cut_at = time.monotonic()
    hosts[1].silence(hosts[0])
    fence = coordinator.logged("epoch 1 is over")
    record_property("seconds from the cut to the fence", time.monotonic() - cut_at)
    assert "fail" in fence
    hosts[1].unsilence(hosts[0])
    for trainer in trainers:
        while until_size(trainer, 2)["epoch"] == 1:
            pass
    check_steps(trainers)


def test_a_late_member_is_not_taken_for_one_that_cannot_be_reached(site: SiteOfHosts) -> None:
    """Its machine answers, also while others send it more than connections hold."""
    site.coordinator("--world-size", "2")
    hosts = [site.host(), site.host()]
    trainers = [
        site.trainer(hosts[number], number, n_steps=3, check="late_for_large_tensors", checks_at=2)
        for number in range(2)
    ]
    check(trainers, 3)
    assert {step["epoch"] for trainer in trainers for step in trainer.steps} == {1}, "no epoch has ended"
