"""A student sets the model of workers on another host, whatever of both hosts is killed; and which leader is followed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from link_roles import CONFIG, WIDTH
from process import Process, Zygote
from separate import Hosts
from waiting import WATCHDOG_S, eventually

import softs_fast as sf


def worker(hosts: Hosts, name: str) -> Process:
    """Start a worker on a host."""
    options = {
        "backend": hosts.endpoints[name].backend,
        "control_pub": hosts.controls[name].control_pub,
    }
    made = Zygote.of(Path(__file__).with_name("link_roles.py")).fork("worker", options)
    hosts.stack.callback(made.kill)
    made.event("ready")
    return made


def student(hosts: Hosts, name: str, rank: int = 0) -> sf.StudentClient:
    """Connect a student of a host."""
    control = hosts.controls[name]
    made = sf.StudentClient(
        rank, 16, CONFIG, hosts.endpoints[name].frontend, control.control, control.control_pub, ordered=True
    )
    return hosts.stack.enter_context(made)


class Training:
    """The leader, which sets a model and takes samples of it: each number once, in order, of that model alone."""

    def __init__(self, client: sf.StudentClient) -> None:
        self.client = client
        self._value = self._generation = self._n = 0

    def switch(self, step: int = 1, **more: object) -> None:
        """Set the next model."""
        self._value += step
        generation = self.client.set_model("m", {"value": self._value, **more})
        assert generation > self._generation
        self._generation, self._n = generation, 0

    def take(self, n: int = 40) -> None:
        """Take the next samples."""
        end = self._n + n

        def are_there() -> bool:
            sample = self.client.request_sample(1000)
            if sample is not None:
                assert sample.generation == self._generation
                numbers = np.frombuffer(sample.data, np.int64)
                assert numbers.tolist() == [self._n, *[self._value] * WIDTH]
                self.client.release_slot(sample.slot_id)
                self._n += 1
            return self._n == end

        eventually(are_there, lambda: self.client.diagnose(WATCHDOG_S), every_s=0)


def test_workers_of_another_host_follow_whatever_is_killed(hosts: Hosts) -> None:
    first = worker(hosts, "teachers")
    training = Training(student(hosts, "student"))
    training.client.hello()
    training.switch(more=bytes(1_000_000))
    training.take()
    # While a link is gone, the student switches.
    for name in ("teachers", "student"):
        hosts.links[name].kill()
        training.switch()
        hosts.link(name)
        training.take()
    for broker in hosts.brokers.values():
        broker.stop()
        broker.start()
        training.take()
        training.switch()
        training.take()
    # More switches than the student has slots, and the link has memory for.
    for _ in range(300):
        training.switch()
        training.take(1)
    # A worker that comes later gets the model of now.
    second = worker(hosts, "teachers")
    first.kill()
    training.take()
    third = worker(hosts, "student")
    training.switch()
    training.take()
    # A host that is cut off meanwhile ends its workers when it is back.
    hosts.links["teachers"].kill()
    training.client.stop_workers()
    assert third.wait() == 0
    hosts.link("teachers")
    assert second.wait() == 0


def test_there_is_one_leader_on_both_hosts_and_others_follow(hosts: Hosts) -> None:
    leader, second = student(hosts, "student"), student(hosts, "teachers")
    follower = student(hosts, "teachers", rank=1)
    follower.start_sub_listener()
    leader.hello()
    for generation in range(1, 4):
        assert leader.set_model("m", {"value": generation}) == generation
        follower.wait_for_generation(generation, WATCHDOG_S)
        assert follower.model_cfg == {"value": generation}
    with pytest.raises(sf.ConfigError, match=r"rank 0 is taken by the leader of the host at 127\.0\.0\.1"):
        second.hello()
    leader.close()

    def leads() -> bool:
        try:
            return second.hello()["generation"] == 3
        except sf.ConfigError:
            return False

    eventually(leads, "the seat is free")
    assert second.set_model("n") == 4
    follower.wait_for_generation(4, WATCHDOG_S)


def test_two_leaders_that_are_joined_are_told_so_and_keep_their_workers(apart: Hosts) -> None:
    trainings = []
    for value, name in enumerate(apart.endpoints, start=1):
        worker(apart, name)
        training = Training(student(apart, name))
        training.client.hello()
        # The numbers of both are the same: only what they stand for tells them apart.
        training.switch(value)
        trainings.append(training)
    apart.join()
    for link, place in zip(apart.links.values(), ("tcp://127.0.0.1:", "127.0.0.1 "), strict=True):
        link.logged(f"the leader of the host at {place}")
    for _ in range(3):
        for training in trainings:
            training.take(200)
        for training in trainings:
            training.switch()
