"""A worker that follows an epoch: what it says when its copy ends, and which weights it has then."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from lone_worker import Worker
from waiting import WATCHDOG_S

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.node import worker_link
from softs_fast.errors import ConfigError, PeerLost


class Silence:
    """A channel with a source that sends nothing."""

    number = 1

    def __init__(self) -> None:
        self.has_ended = threading.Event()

    def end(self, reason: str) -> None:
        self.has_ended.set()

    def close(self) -> None:
        pass


def test_a_follower_that_is_told_to_leave_waits_for_no_step_and_makes_no_one_wait(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def follow(channel: Silence, *_: Any) -> None:
        worker.node.leave("SIGTERM")
        assert channel.has_ended.wait(WATCHDOG_S)
        raise PeerLost("the channel has ended")

    monkeypatch.setattr(worker_link, "follow", follow)
    monkeypatch.setattr(worker._link, "_unfollowed", lambda channel, text: said.append(text))
    channel: Any = Silence()
    worker._link._copy = channel
    worker._link.follow(channel)
    assert said == []
    assert worker._link.machine.is_resting, "the coordinator closes the connection, on which calls may wait"


@pytest.mark.parametrize("is_begun_anew", [False, True])
def test_a_copy_that_breaks_has_failed_unless_it_is_begun_anew(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, is_begun_anew: bool
) -> None:
    """Another follower may be lost, of which the coordinator hears."""
    said: list[str] = []
    channel: Any = Silence()
    again: Any = Silence()

    def follow(*_: Any) -> None:
        if is_begun_anew:
            worker._link._copy = again
        raise PeerLost("a follower is lost")

    monkeypatch.setattr(worker_link, "_ANSWER_S", 0.0)
    monkeypatch.setattr(worker_link, "follow", follow)
    monkeypatch.setattr(worker._link, "_unfollowed", lambda channel, text: said.append(text))
    worker._link._copy = channel
    worker._link.follow(channel)
    assert len(said) == (not is_begun_anew)


def test_a_follower_that_is_interrupted_says_that_it_does_not_follow(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def follow(channel: Silence, *_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker_link, "follow", follow)
    monkeypatch.setattr(worker._link, "_unfollowed", lambda channel, text: said.append(text))
    channel: Any = Silence()
    worker._link._copy = channel
    with pytest.raises(KeyboardInterrupt):
        worker._link.follow(channel)
    assert len(said) == 1


def test_a_follower_that_has_begun_to_copy_keeps_no_weights_for_a_table_that_counts_on_them(
    worker: Worker,
) -> None:
    """The table was sent before the coordinator heard of it."""
    worker.fence(1)
    machine = worker._link.machine
    assert machine.table is not None
    machine._follow = m.Follow(machine.table, 5)
    machine.overwriting()
    worker.open(3, 1, (0, 1), 0)
    assert machine.phase == "idle"
    assert worker.said == m.WorkerState(7)
    with pytest.raises(ConfigError, match="no worker has valid weights"):
        worker.open(4, 0, (0,), 0)


def test_a_step_of_which_weights_of_a_follower_were_not_compared_is_not_committed(worker: Worker) -> None:
    with worker.node.step() as step:
        worker._link.machine.reduced()
        worker.fence(1)
        worker._link.machine.state = m.WorkerState(7, 0, 10)
    assert not step.is_committed
