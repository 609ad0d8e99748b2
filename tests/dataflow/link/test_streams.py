"""The two ends of a stream: what arrives beside rubbish, waits that another thread ends, descriptors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from stream_peers import both
from waiting import WATCHDOG_S
from wire_samples import shown

from softs_fast.dataflow.link.frames import cut
from softs_fast.dataflow.link.links import Joined, Left, LinkEvent, Received
from softs_fast.dataflow.link.messages import Abort, End, Free, Refused, Result, State, encode
from softs_fast.dataflow.link.stream import MasterStream, StreamLimits, WorkerStream
from softs_fast.errors import FlowError, PeerLost, WireError
from softs_fast.trust import new_token

#: Less than a message of 9 MiB.
SMALL = StreamLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)
LARGE = Free(tuple(range(1 << 60, (1 << 60) + (1 << 20))))


@pytest.fixture
def token() -> str:
    return new_token()


@pytest.fixture
def master(token: str) -> Iterator[MasterStream]:
    link = MasterStream(token)
    yield link
    link.close()


def send_bytes(worker: WorkerStream, frames: Iterable[bytes]) -> None:
    """Send what need not be the frames of a message."""
    native = worker._native
    assert native is not None
    for frame in frames:
        native.send(frame)


def take(master: MasterStream, n: int) -> list[LinkEvent | WireError]:
    """Receive until there are so many events and errors."""
    found: list[LinkEvent | WireError] = []
    while len(found) < n:
        try:
            events = master.receive(WATCHDOG_S)
            assert events, "nothing arrives"
            found += events
        except WireError as error:
            found.append(error)
    return found


def test_what_arrives_around_a_message_that_is_none_is_not_lost(master: MasterStream, token: str) -> None:
    with closing(WorkerStream(master.endpoint, token, 3)) as worker:
        take(master, 1)
        for data in (encode(Result(7)), b"rubbish", encode(Result(8)), encode(Result(9))):
            send_bytes(worker, cut(data))
    # All has arrived when the departure has: one `receive` has everything then.
    found = take(master, 5)
    assert [type(one) for one in found] == [Received, WireError, Received, Received, Left]
    tickets = [one.message.ticket for one in found if isinstance(one, Received)]  # type: ignore[union-attr]
    assert tickets == [7, 8, 9]


def test_an_error_comes_after_what_arrived_before_it_in_the_same_call(
    master: MasterStream, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(WorkerStream(master.endpoint, token, 3)) as worker:
        take(master, 1)
        arrived: list[tuple[Any, ...]] = []
        for data in (encode(Result(7)), b"rubbish", encode(Result(8))):
            send_bytes(worker, cut(data))
        while len(arrived) < 3:
            arrived += master._receive(WATCHDOG_S)
        monkeypatch.setattr(master, "_receive", lambda timeout_s: arrived)
        (first,) = master.receive(0.0)
        assert first == Received(3, Result(7))
        with pytest.raises(WireError, match="cannot be read"):
            master.receive(0.0)
        assert master.receive(0.0) == [Received(3, Result(8))]


def test_nothing_is_kept_of_workers_that_have_left(master: MasterStream, token: str) -> None:
    for seat in (3, 1_000_003, 2_000_003):  # as on hosts, where each process of a worker has its own
        with closing(WorkerStream(master.endpoint, token, seat)) as worker:
            take(master, 1)
            master.send(seat, State(9, shown(0)))
            # The last frame never comes.
            send_bytes(worker, list(cut(encode(Result(7, digest="x" * 40)) + bytes(1 << 20)))[:-1])
        while not (events := master.receive(WATCHDOG_S)):
            pass  # a part of a message
        assert isinstance(events[0], Left)
        master.send(seat, State(9, shown(0)))
    assert (master._assemblers, master._got, master._sent) == ({}, {}, {})


def test_nothing_comes_after_a_part_of_a_message() -> None:
    first = Abort(2, "first")
    with both(limits=SMALL) as (master, worker):
        master.send(0, first)
        with pytest.raises(FlowError, match="worker 0 takes no more orders: "):
            master.send(0, LARGE)
        found = worker.receive(WATCHDOG_S)
        while worker._assembler._n_bytes == 0:
            found += worker.receive(WATCHDOG_S)  # a part of the message has arrived, and there is room again
        with pytest.raises(FlowError, match=r"worker 0 takes no more orders: .* was sent in part"):
            master.send(0, first)
        master.send(0, End())  # as one does that ends the flow
        master.send(0, Refused("it is late"))  # or gives the worker up
        master.close()
        with suppress(PeerLost):
            while True:
                found += worker.receive(WATCHDOG_S)
        assert found == [first]


def test_a_worker_that_cannot_send_the_whole_of_a_message_leaves() -> None:
    with both(limits=SMALL) as (master, worker):
        with pytest.raises(PeerLost, match="the master takes no more: "):
            worker.send(LARGE)
        with pytest.raises(PeerLost, match="was closed"):
            worker.send(Result(7))
        while not (found := master.receive(WATCHDOG_S)):
            pass  # a part of a message
        assert isinstance(found[0], Left)


def test_another_thread_ends_a_wait_by_closing(master: MasterStream, token: str) -> None:
    worker = WorkerStream(master.endpoint, token, 3)
    ended: list[str] = []

    def wait() -> None:
        try:
            worker.receive(None)
        except PeerLost as error:
            ended.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert isinstance(take(master, 1)[0], Joined)
    worker.close()
    worker.close()
    thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    assert len(ended) == 1
    for call in (lambda: worker.receive(None), lambda: worker.send(End()), lambda: worker.publish("a", b"")):
        with pytest.raises(PeerLost, match="was closed"):
            call()


def test_descriptors_go_with_close(token: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    link = MasterStream(token)
    worker = WorkerStream(link.endpoint, token, 0)
    take(link, 1)
    assert set(os.listdir("/proc/self/fd")) > before
    worker.close()
    take(link, 1)
    link.close()
    link.close()
    assert set(os.listdir("/proc/self/fd")) == before
    with pytest.raises(PeerLost, match="were closed"):
        link.receive(0.0)
    with pytest.raises(FlowError, match="does not answer"):
        link.ask(0, "inside", 1.0)


def test_layouts_that_a_worker_did_not_get_are_sent_to_its_successor(
    master: MasterStream, token: str
) -> None:
    state = State(9, shown(0))
    first = WorkerStream(master.endpoint, token, 3)
    take(master, 1)
    first.close()
    assert isinstance(take(master, 1)[0], Left)
    master.send(3, state)  # as one does that has not handled the departure yet
    second = WorkerStream(master.endpoint, token, 3)
    take(master, 1)
    master.send(3, state)
    assert second.receive(WATCHDOG_S) == [state]
    second.close()
