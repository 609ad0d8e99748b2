"""A worker's link of which the end is known while a step runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from stream_peers import events, opened
from waiting import WATCHDOG_S

from softs_fast.dataflow.link.events import Joined
from softs_fast.dataflow.link.messages import End, Free, Refused
from softs_fast.dataflow.link.stream import MasterStream, join
from softs_fast.dataflow.process.watched_link import WatchedLink
from softs_fast.errors import HelloError, PeerLost


@dataclass
class Ends:
    """Both ends, and whether the worker's said that a step is stuck."""

    master: MasterStream
    worker: WatchedLink
    is_stuck: threading.Event


@pytest.fixture
def ends() -> Iterator[Ends]:
    is_stuck = threading.Event()
    with opened() as master:
        worker = WatchedLink(join(master.endpoint, None, 3), 0.2, is_stuck.set)
        try:
            assert isinstance(events(master)[0], Joined)
            yield Ends(master, worker, is_stuck)
        finally:
            worker.close()
            worker.close()


def test_messages_come_in_order_and_a_time_may_be_over(ends: Ends) -> None:
    assert ends.worker.receive(0.0) == []
    assert ends.worker.receive(0.01) == []
    for number in range(3):
        ends.master.send(3, Free((number,)))
    got: list[object] = []
    while len(got) < 3:
        got += ends.worker.receive(WATCHDOG_S)
    assert got == [Free((0,)), Free((1,)), Free((2,))]
    assert not ends.worker.lost
    ends.worker.close()
    assert not ends.is_stuck.is_set()


def test_what_came_before_the_end_is_returned_first(ends: Ends) -> None:
    ends.master.send(3, Free((1,)))
    ends.master.close()
    assert ends.worker.receive(None) == [Free((1,))]
    for _ in range(2):
        with pytest.raises(PeerLost, match="has ended: the master has closed"):
            ends.worker.receive(None)
    with pytest.raises(PeerLost, match="has ended"):
        ends.worker.send(End())
    ends.worker.check()
    assert not ends.worker.has_ended


def test_a_step_that_does_not_return_is_stuck_when_the_master_has_gone(ends: Ends) -> None:
    ends.master.close()
    assert ends.is_stuck.wait(WATCHDOG_S)


def test_a_worker_that_is_given_up_is_told_why(ends: Ends) -> None:
    ends.master.send(3, Refused("it was late"))
    with pytest.raises(PeerLost, match="the master has given this worker up: it was late"):
        ends.worker.receive(None)
    with pytest.raises(HelloError, match="it was late"):
        ends.worker.check()
    # The connection is there, and nothing goes through it.
    with pytest.raises(PeerLost, match="given this worker up"):
        ends.worker.send(End())
    assert ends.is_stuck.wait(WATCHDOG_S)


def test_the_end_of_the_flow_is_known_before_it_is_read(ends: Ends) -> None:
    ends.master.send(3, End())
    ends.master.close()
    assert ends.is_stuck.wait(WATCHDOG_S)
    assert ends.worker.has_ended
    assert ends.worker.receive(None) == [End()]
