"""The two ends of a stream: what arrives beside rubbish, waits that another thread ends, descriptors."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from stream_peers import both, flood, joined, opened
from waiting import WATCHDOG_S
from wire_samples import shown

from softs_fast.dataflow.link.events import Left, LinkEvent, Received
from softs_fast.dataflow.link.messages import Abort, End, Free, Refused, Result, State, encode
from softs_fast.dataflow.link.stream import MasterStream, StreamLimits, WorkerStream
from softs_fast.errors import FlowError, PeerLost, WireError

#: Less than a message of 9 MiB, of which one at a time may wait.
SMALL = StreamLimits(unsent_bytes=1 << 20, unread_bytes=1 << 20)
LARGE = Free(tuple(range(1 << 60, (1 << 60) + (1 << 20))))


def send_bytes(worker: WorkerStream, data: bytes) -> None:
    """Send what need not be a message."""
    native = worker._native
    assert native is not None
    native.send(data)


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


def test_what_arrives_around_a_message_that_is_none_is_not_lost() -> None:
    with opened() as master:
        with joined(master, 3) as worker:
            for data in (encode(Result(7)), b"rubbish", encode(Result(8)), encode(Result(9))):
                send_bytes(worker, data)
        # All has arrived when the departure has: one `receive` has everything then.
        found = take(master, 5)
    assert [type(one) for one in found] == [Received, WireError, Received, Received, Left]
    tickets = [one.message.ticket for one in found if isinstance(one, Received)]  # type: ignore[union-attr]
    assert tickets == [7, 8, 9]


def test_an_error_comes_after_what_arrived_before_it_in_the_same_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with both() as (master, worker):
        arrived: list[tuple[Any, ...]] = []
        for data in (encode(Result(7)), b"rubbish", encode(Result(8))):
            send_bytes(worker, data)
        while len(arrived) < 3:
            arrived += master._receive(WATCHDOG_S)
        monkeypatch.setattr(master, "_receive", lambda timeout_s: arrived)
        (first,) = master.receive(0.0)
        assert first == Received(0, Result(7))
        with pytest.raises(WireError, match="cannot be read"):
            master.receive(0.0)
        assert master.receive(0.0) == [Received(0, Result(8))]


def test_nothing_is_kept_of_workers_that_have_left() -> None:
    with opened() as master:
        for seat in (3, 1_000_003, 2_000_003):  # as on hosts, where each process of a worker has its own
            with joined(master, seat) as worker:
                master.send(seat, State(9, shown(0)))
                worker.send(State(9, shown(0)))
            assert [type(one) for one in take(master, 2)] == [Received, Left]
            master.send(seat, State(9, shown(0)))
        assert (master._got, master._sent) == ({}, {})


def test_nothing_comes_after_a_message_that_was_refused() -> None:
    first = Abort(2, "first")
    with both(limits=SMALL) as (master, worker):
        master.send(0, first)
        n_large, why = flood(lambda message: master.send(0, LARGE))
        assert why.startswith("worker 0 takes no more orders: worker 0 reads too slowly: ")
        found = worker.receive(WATCHDOG_S)
        while len(found) < 1 + n_large:
            found += worker.receive(WATCHDOG_S)  # there is room again
        with pytest.raises(
            FlowError, match=r"worker 0 takes no more orders: .* before this one was not sent"
        ):
            master.send(0, first)
        # It is given up, or the flow ends: this it learns as soon as there is room.
        master.send(0, Refused("it is late"))
        master.send(0, End())
        while len(found) < 3 + n_large:
            found += worker.receive(WATCHDOG_S)
        assert found == [first] + [LARGE] * n_large + [Refused("it is late"), End()]


def test_another_thread_ends_a_wait_by_closing() -> None:
    ended: list[str] = []

    def wait() -> None:
        try:
            worker.receive(None)
        except PeerLost as error:
            ended.append(str(error))

    with both() as (_, worker):
        thread = threading.Thread(target=wait)
        thread.start()
        worker.close()
        worker.close()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        assert len(ended) == 1
        for call in (
            lambda: worker.receive(None),
            lambda: worker.send(End()),
            lambda: worker.publish("a", b""),
        ):
            with pytest.raises(PeerLost, match="was closed"):
                call()


def test_descriptors_go_with_close() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with both() as (master, worker):
        assert set(os.listdir("/proc/self/fd")) > before
        worker.close()
        take(master, 1)
        master.close()
        assert set(os.listdir("/proc/self/fd")) == before
        with pytest.raises(PeerLost, match="were closed"):
            master.receive(0.0)
        with pytest.raises(FlowError, match="does not answer"):
            master.ask(0, "inside", 1.0)
