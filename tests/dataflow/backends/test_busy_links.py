"""Workers that do not read: nothing can be sent to them, and yet they are ended, and their successors greeted."""

from __future__ import annotations

from typing import Any

import pytest
from flow_threads import in_threads
from restart_flow import make_restarting

from softs_fast.dataflow.backends.host_link import HostLink
from softs_fast.dataflow.wire.links import Joined, Left, LinkEvent
from softs_fast.dataflow.wire.messages import Declared, End, Message, Refused
from softs_fast.dataflow.wire.seats import MOST_WORKERS, Seats
from softs_fast.errors import FlowError


class BusyLink:
    """Connections by seat, of which one takes nothing more."""

    def __init__(self) -> None:
        self.busy = -1
        self.sent: list[tuple[int, type]] = []
        self.events: list[LinkEvent] = []

    def send(self, seat: int, message: Message) -> None:
        if seat == self.busy:
            raise FlowError(f"worker {seat} takes no more orders")
        self.sent.append((seat, type(message)))

    def receive(self, timeout_s: float) -> list[LinkEvent]:
        events, self.events = self.events, []
        return events


@pytest.mark.parametrize("leaves", [False, True])
def test_a_process_that_reads_nothing_is_given_up_and_told_when_it_reads(leaves: bool) -> None:
    first, second = 1 + MOST_WORKERS, 1 + 2 * MOST_WORKERS
    under = BusyLink()
    link = HostLink(under, Seats([0, 1]), lambda event: None)  # type: ignore[arg-type]
    link.begin()
    under.events = [Joined(first, 11, "far"), Joined(second, 12, "far")]
    assert link.receive(0.0) == [Joined(1, 11, "far")]
    under.busy = first
    link.give_up(1, "it is late")
    assert link.receive(0.0) == [Joined(1, 12, "far")]
    assert under.sent == [(first, Declared), (second, Declared)]
    under.events = [Left(first, "its connection ended")] if leaves else []
    assert link.receive(0.0) == []
    under.busy = -1
    assert link.receive(0.0) == []
    assert under.sent[2:] == ([] if leaves else [(first, Refused)])
    assert not link._untold


def test_workers_are_ended_although_one_of_them_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, workers = in_threads(make_restarting)
    told: list[int] = []

    def send(worker: int, message: Any) -> None:
        if isinstance(message, End):
            told.append(worker)
            raise FlowError(f"worker {worker} takes no more orders")

    with flow:
        closed, close = [], workers.close
        monkeypatch.setattr(workers, "close", lambda: closed.append(close()))
        monkeypatch.setattr(workers.hub, "send", send)
    assert sorted(told) == [0, 1, 2]
    assert len(closed) == 1
