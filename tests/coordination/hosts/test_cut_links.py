"""Links between hosts that are cut one way and both ways: the others go on in bounded time, and a mended host joins again."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from network import Host
from site_of_hosts import SiteOfHosts
from trainers import check_steps, until_size

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


@pytest.mark.parametrize("cut", [both_ways, to_the_coordinator, from_the_coordinator])
def test_a_host_that_cannot_be_reached_is_left_behind_and_joins_again(
    site: SiteOfHosts, cut: Link, record_property: Callable[[str, object], None]
) -> None:
    site.coordinator("--min", "2", "--max", "4", "--window", "0.5")
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


def test_hosts_that_reach_the_coordinator_but_not_each_other(site: SiteOfHosts) -> None:
    """No worker is lost, so no epoch ends: the step is committed when the link is mended."""
    site.coordinator("--size", "2")
    hosts = [site.host(), site.host()]
    trainers = [site.trainer(hosts[number], number, n_steps=100_000, pause_s=0.01) for number in range(2)]
    until_size(trainers[0], 2)
    hosts[1].silence(hosts[0])
    while not trainers[0].stands_still(1.0):
        pass
    hosts[1].unsilence(hosts[0])
    for trainer in trainers:
        until_size(trainer, 2)
    check_steps(trainers)
    assert {step["epoch"] for trainer in trainers for step in trainer.steps} == {1}
