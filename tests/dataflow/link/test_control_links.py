"""The links of a flow over the control stream: what arrives beside rubbish, waits that another thread ends, descriptors."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator

import pytest
from waiting import WATCHDOG_S
from wire_samples import shown

from softs_fast.dataflow.link.control import ControlClient, ControlLimits, Ended
from softs_fast.dataflow.link.frames import Assembler, cut
from softs_fast.dataflow.link.links import Joined, Left, LinkEvent, Received
from softs_fast.dataflow.link.messages import Abort, End, Free, Refused, Result, State, decode, encode
from softs_fast.dataflow.link.stream import ControlMaster, ControlWorker
from softs_fast.errors import FlowError, PeerBusy, PeerLost, WireError
from softs_fast.trust import new_token


@pytest.fixture
def token() -> str:
    return new_token()


@pytest.fixture
def master(token: str) -> Iterator[ControlMaster]:
    link = ControlMaster(token)
    yield link
    link.close()


def take(master: ControlMaster, n: int) -> list[LinkEvent | WireError]:
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


def test_what_arrives_around_a_message_that_is_none_is_not_lost(master: ControlMaster, token: str) -> None:
    with ControlClient(master.endpoint, 3, token=token) as client:
        take(master, 1)
        for data in (encode(Result(1, 7)), b"rubbish", encode(Result(1, 8)), encode(Result(1, 9))):
            for frame in cut(data):
                client.send(frame)
    # All has arrived when the departure has: one `receive` of the server has everything then.
    found = take(master, 5)
    assert [type(one) for one in found] == [Received, WireError, Received, Received, Left]
    tickets = [one.message.ticket for one in found if isinstance(one, Received)]  # type: ignore[union-attr]
    assert tickets == [7, 8, 9]


def test_an_error_comes_after_what_arrived_before_it_in_the_same_call(
    master: ControlMaster, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ControlClient(master.endpoint, 3, token=token) as client:
        take(master, 1)
        events = []
        for data in (encode(Result(1, 7)), b"rubbish", encode(Result(1, 8))):
            for frame in cut(data):
                client.send(frame)
        server = master._server
        assert server is not None
        while len(events) < 3:
            events += server.receive(WATCHDOG_S)
        monkeypatch.setattr(server, "receive", lambda timeout_s: events)
        (first,) = master.receive(0.0)
        assert first == Received(3, Result(1, 7))
        with pytest.raises(WireError, match="cannot be read"):
            master.receive(0.0)
        assert master.receive(0.0) == [Received(3, Result(1, 8))]


def test_nothing_is_kept_of_workers_that_have_left(master: ControlMaster, token: str) -> None:
    for seat in (3, 1_000_003, 2_000_003):  # as on hosts, where each process of a worker has its own
        with ControlClient(master.endpoint, seat, token=token) as client:
            take(master, 1)
            master.send(seat, State(1, 9, shown(0)))
            for frame in list(cut(encode(Result(1, 7, digest="x" * 40)) + bytes(1 << 20)))[:-1]:
                client.send(frame)  # and the last one never comes
        while not (events := master.receive(WATCHDOG_S)):
            pass  # a part of a message
        assert isinstance(events[0], Left)
        master.send(seat, State(1, 9, shown(0)))
    assert (master._assemblers, master._got, master._sent) == ({}, {}, {})


def test_nothing_comes_after_a_part_of_a_message(token: str) -> None:
    limits = ControlLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)
    master = ControlMaster(token, limits=limits)
    client = ControlClient(master.endpoint, 3, token=token, limits=limits)
    first, large = Abort(1, 2, "first"), Free(tuple(range(1 << 60, (1 << 60) + (1 << 20))))
    frames: list[bytes | Ended] = []
    try:
        take(master, 1)
        master.send(3, first)
        with pytest.raises(FlowError, match="worker 3 takes no more orders: "):
            master.send(3, large)  # 9 MiB
        while len(frames) < 2:
            frames += client.receive(WATCHDOG_S)
        with pytest.raises(FlowError, match=r"worker 3 takes no more orders: .* was sent in part"):
            master.send(3, first)
        master.send(3, End())  # as one does that ends the flow
        master.send(3, Refused("it is late"))  # or gives the worker up
        master.close()
        while not isinstance(frames[-1], Ended):
            frames += client.receive(WATCHDOG_S)
        assembler = Assembler()
        whole = [data for one in frames if isinstance(one, bytes) and (data := assembler.take(one))]
        assert list(map(decode, whole)) == [first]
    finally:
        client.close()
        master.close()


def test_a_worker_that_cannot_send_the_whole_of_a_message_leaves(
    master: ControlMaster, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ControlWorker(master.endpoint, token, 3)
    assert isinstance(take(master, 1)[0], Joined)
    client = worker._client
    assert client is not None
    send, n_sent = client.send, itertools.count()

    def send_first(frame: bytes) -> None:
        if next(n_sent):
            raise PeerBusy("too much waits")
        send(frame)

    monkeypatch.setattr(client, "send", send_first)
    with pytest.raises(PeerLost, match="the master takes no more: too much waits"):
        worker.send(Free(tuple(range(1 << 60, (1 << 60) + (1 << 17)))))
    with pytest.raises(PeerLost, match="was closed"):
        worker.send(Result(1, 7))
    while not (events := master.receive(WATCHDOG_S)):
        pass  # a part of a message
    assert isinstance(events[0], Left)


def test_another_thread_ends_a_wait_by_closing(master: ControlMaster, token: str) -> None:
    worker = ControlWorker(master.endpoint, token, 3)
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
    link = ControlMaster(token)
    worker = ControlWorker(link.endpoint, token, 0)
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
    master: ControlMaster, token: str
) -> None:
    state = State(1, 9, shown(0))
    first = ControlWorker(master.endpoint, token, 3)
    take(master, 1)
    first.close()
    assert isinstance(take(master, 1)[0], Left)
    master.send(3, state)  # as one does that has not handled the departure yet
    second = ControlWorker(master.endpoint, token, 3)
    take(master, 1)
    master.send(3, state)
    assert second.receive(WATCHDOG_S) == [state]
    second.close()
