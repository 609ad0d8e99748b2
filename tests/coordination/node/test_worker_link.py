"""What the two threads of a worker do with a fence: the calls end first, then it is ready for another epoch."""

from __future__ import annotations

import queue
import re
import threading
from typing import Any

import pytest
import torch

from softs_fast.coordination.job import messages as m
from softs_fast.coordination.job.participant import Build
from softs_fast.coordination.node import worker_link
from softs_fast.coordination.node.step_calls import StepCalls
from softs_fast.coordination.node.worker_link import WorkerLink
from softs_fast.errors import ConfigError, PeerLost

FENCE = m.Fence(7, 1, "gone", 1, "seat 1 is gone")


class Engine:
    """A strategy with calls that wait until the test lets them go on."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.entered, self.may_end = threading.Event(), threading.Event()
        self.told: list[str] = []
        self.is_closed = False
        self.fails_with: Exception | None = None

    def all_reduce(self, tensor: Any, op: str = "sum") -> None:
        self.entered.set()
        assert self.may_end.wait(30)
        if self.fails_with is not None:
            raise self.fails_with

    def give_up(self, reason: str) -> None:
        self.told.append(reason)

    def close(self) -> None:
        self.is_closed = True


class Unprintable(Exception):
    """An exception of which the text fails, too."""

    def __str__(self) -> str:
        raise AttributeError("a defect of the text")


class Store:
    """A store of an epoch, for which nothing is registered."""

    def __init__(self, *arguments: Any, prefix: str) -> None:
        pass

    def end(self, reason: str) -> bool:
        return False


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A member of epoch 1, and its engine; its session is never started."""
    # The test says that the epoch is over when it comes to it.
    monkeypatch.setattr(worker_link, "_ANSWER_S", 30.0)
    monkeypatch.setattr(worker_link, "SessionStore", Store)
    engine: Any = Engine()
    link = WorkerLink("127.0.0.1:1", m.Hello("job", "w0", 1), None, engine=lambda *_: engine)
    listener = link.session._listener
    listener.hello()
    listener.received(m.Welcome(7, 0))
    members = tuple(m.Member(rank, rank, f"w{rank}", 1, "") for rank in range(2))
    listener.received(m.Table(7, 1, members, 0, "back", (), None))
    build = link.next_build(0.0, 1.0)
    assert isinstance(build, Build)
    link.join(build, range(2))
    link.machine.prepared()
    link.end_call([])
    assert link.is_in(1)
    return link, engine, listener.received


@pytest.fixture
def sent(member: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the member sends from now on."""
    found: queue.Queue[Any] = queue.Queue()
    monkeypatch.setattr(member[0].session, "send", found.put)
    return found


def calling(link: WorkerLink, engine: Any) -> tuple[threading.Thread, list[BaseException]]:
    """Begin a call of the user's in another thread; what it raises."""
    raised: list[BaseException] = []
    calls = StepCalls(link, 1, engine)

    def call() -> None:
        try:
            calls.all_reduce(torch.ones(1))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert engine.entered.wait(30)
    return thread, raised


def test_it_is_not_ready_before_a_call_of_the_users_has_ended(member: Any) -> None:
    link, engine, receive = member
    thread, raised = calling(link, engine)
    receive(FENCE)
    assert engine.told == ["seat 1 is gone"], "the call is ended"
    assert link.machine.phase == "ending", "and it is pending"
    assert not engine.is_closed
    engine.fails_with = PeerLost("ended")
    engine.may_end.set()
    thread.join(30)
    assert [type(one) for one in raised] == [PeerLost]
    assert link.machine.phase == "idle"
    assert engine.is_closed


def test_a_loss_in_a_call_of_the_users_ends_the_epoch(member: Any, sent: Any) -> None:
    link, engine, receive = member
    engine.fails_with = PeerLost("connection closed by peer")
    engine.lost = [1]
    thread, raised = calling(link, engine)
    engine.may_end.set()
    assert sent.get(timeout=30) == m.Fault(1, 1, 1, "connection closed by peer")
    receive(m.Fence(7, 1, "fault", 1, 'rank 1, seat 1 ("w1") is lost'))
    thread.join(30)
    reason = 'epoch 1 is over: rank 1, seat 1 ("w1") is lost'
    assert [str(one) for one in raised] == [reason], "in the words of the coordinator, and not of the engine"
    assert link.machine.phase == "idle"
    with pytest.raises(PeerLost, match=re.escape(reason)):
        StepCalls(link, 1, engine).all_reduce(torch.ones(1))
    with pytest.raises(PeerLost, match=re.escape(f"in no epoch after 0 s; {reason}; softs-fast")):
        link.next_build(0.0, 0.0)


def test_a_worker_id_that_no_message_may_have_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"Hello.worker_id: Expected str matching regex"):
        WorkerLink("127.0.0.1:1", m.Hello("job", "w\N{SNOWMAN}", 1), None)


def test_calls_that_differ_do_not_end_the_epoch(member: Any) -> None:
    link, engine, _ = member
    engine.fails_with = ConfigError("tensors differ")
    engine.may_end.set()
    thread, raised = calling(link, engine)
    thread.join(30)
    assert [type(one) for one in raised] == [ConfigError]
    assert link.is_in(1)


def test_any_other_error_in_a_call_tells_the_others(member: Any) -> None:
    link, engine, receive = member
    engine.fails_with = ZeroDivisionError("a defect")
    engine.may_end.set()
    thread, raised = calling(link, engine)
    receive(m.Fence(7, 1, "fault", 0, "told"))
    thread.join(30)
    assert [type(one) for one in raised] == [ZeroDivisionError]
    assert not link.is_in(1)


def test_an_error_of_its_own_is_told_before_the_engine_ends(member: Any, sent: Any) -> None:
    """With type and text; the worker is no member of the next epoch before its program begins a step."""
    link, engine, receive = member
    error = Unprintable("a defect")
    raising = threading.Thread(target=link.raised, args=[error, "no batch: "])
    raising.start()
    assert sent.get(timeout=30) == m.Fault(
        1, 1, 0, "no batch: Unprintable: no text: its __str__ raised AttributeError"
    )
    assert not engine.told, "the others learn of it by the fence, in the words of the coordinator"
    receive(m.Fence(7, 1, "fault", 0, "told"))
    raising.join(30)
    assert engine.is_closed
    assert sent.empty(), "it is not ready"
    with pytest.raises(PeerLost):
        link.next_build(0.0, 0.0)
    assert isinstance(sent.get(timeout=30), m.Ready)


def test_without_a_call_a_fence_is_answered_at_once(member: Any) -> None:
    link, engine, receive = member
    receive(FENCE)
    assert link.machine.phase == "idle"
    assert engine.is_closed
    assert link.is_over_within(1, 0.0)


def test_an_engine_is_refused_if_its_epoch_is_over(member: Any) -> None:
    link, engine, receive = member
    receive(FENCE)
    receive(m.Table(7, 2, link.machine.table.members, 0, "back", (), None))
    build = link.next_build(0.0, 1.0)
    made = []

    def make(*_: Any) -> Any:
        made.append(engine)
        receive(m.Fence(7, 2, "gone", 1, "seat 1 is gone"))
        return engine

    link._engine = make
    for n_made in (1, 1):
        with pytest.raises(PeerLost, match="over before its engine was there"):
            link.join(build, range(2))
        assert len(made) == n_made, "none is made once the epoch is over"


def test_an_engine_that_some_members_have_closed_is_told_of_no_fence(member: Any) -> None:
    link, engine, receive = member
    link.close_engine()
    assert engine.is_closed
    receive(FENCE)
    assert engine.told == []
