"""What a flow has for a worker of which it does not know yet that it has left: it has no answer, and waits for none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from flow_threads import ThreadWorkers, in_threads
from flows import ROWS, numbers, role_of
from restart_flow import Model, make_restarting
from waiting import WATCHDOG_S, eventually

import softs_fast.dataflow as df
from softs_fast.collectives.backend.work import BackendLost
from softs_fast.dataflow.declare.hooks import Publish
from softs_fast.dataflow.link.messages import Columns, HookTask, ReadElements
from softs_fast.dataflow.link.results import Failure, Result
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.process.work import HookWork
from softs_fast.dataflow.workers.backend import Back, Done, Lost
from softs_fast.dataflow.workers.departures import Departures, may_have_lost_a_peer
from softs_fast.dataflow.workers.processes import ProcessBackend
from softs_fast.errors import PeerLost


@pytest.fixture
def opened() -> Iterator[tuple[Any, ThreadWorkers, Publish]]:
    """The backend of a flow that nothing runs in, its workers, and a hook of worker 0 and 1."""
    flow, workers = in_threads(make_restarting)
    with flow:
        backend = flow._backend
        assert isinstance(backend, ProcessBackend)
        yield backend, workers, Publish((role_of(flow, "gen"),))


def send(backend: ProcessBackend, hook: Publish, *workers: int) -> int:
    """Send a hook to workers; returns how many steps are open then."""
    step = Step(Kind.POST, frozenset(workers), hook, ticket=1000, call=1000)
    for worker in workers:
        backend.send(worker, step, lambda: HookWork(hook, None, 0))
    return len(backend._sent)


def told(workers: ThreadWorkers, kind: type) -> list[int]:
    """Return which workers got such messages of the test."""
    return [
        worker
        for worker, message in workers.hub.sent
        if isinstance(message, kind) and getattr(message, "ticket", 1000) == 1000
    ]


def test_orders_and_reads_for_a_worker_that_has_left_are_not_open(opened: Any) -> None:
    backend, workers, hook = opened
    backend.end(1, "it is late")
    assert send(backend, hook, 1) == 0
    assert backend.elements.read(1, 7, 0, [0, 1]) == []
    assert [one.worker for one in backend.wait(0.0)] == [1]
    assert backend.wait(None) == []
    assert told(workers, HookTask) == told(workers, ReadElements) == []


def test_a_departure_that_is_known_is_not_awaited() -> None:
    departures = Departures()
    held = SimpleNamespace(worker=2, segment=SimpleNamespace(node="here"))
    departures.note_ending(SimpleNamespace(columns=Columns.of({"x": [held]})), 0, [1, 2])  # type: ignore[arg-type]
    departures.leave(2)
    departures.await_known(lambda timeout_s: pytest.fail("it waits for what it knows"), "here")


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize(
    ("error", "is_of_a_call"),
    [
        (dist.DistBackendError("connection closed"), True),
        (RuntimeError("connection closed"), True),
        (BackendLost("rank 1 has ended"), True),
        (PeerLost("the store has gone"), True),
        (ValueError("a wrong size"), False),
    ],
)
def test_errors_of_collective_calls_may_come_of_a_lost_peer(
    error: Exception, is_of_a_call: bool, is_shared: bool
) -> None:
    done = Done(0, Result(ticket=7, failure=Failure.of(error)))
    assert may_have_lost_a_peer(done, is_shared=is_shared) == (is_of_a_call and is_shared)


def test_a_departure_comes_before_the_failures_that_it_may_have_caused(opened: Any) -> None:
    """The worker that could not read from the one that has left is received in the same moment, and first."""
    backend, _, _ = opened
    unread = Done(0, Result(1000, failure=Failure("it cannot be read", "Unreadable"), unread=True))
    lost = Lost(1, "it has ended", returns=True)
    done = Done(1, Result(999))
    backend._events += [done, unread, lost]
    assert backend.wait(0.0) == [done, lost, unread]


@pytest.mark.parametrize("has_nodes", [False, True])
def test_the_others_of_its_step_get_their_orders(opened: Any, has_nodes: bool) -> None:
    backend, workers, hook = opened
    if has_nodes:
        backend._sends.held.begin({0: "a", 1: "b", 2: "b", 3: "a"})
    backend.end(1, "it is late")
    assert send(backend, hook, 0, 1) == 1
    assert told(workers, HookTask) == [0]
    while backend._sent:
        backend.wait(WATCHDOG_S)
    assert backend.wait(None) == []


def test_another_process_of_its_number_gets_nothing_that_was_for_it(opened: Any) -> None:
    backend, workers, hook = opened
    workers.left = 1
    backend.end(1, "it is late")
    eventually(lambda: 1 not in backend._left or backend._receive(0.1), "the worker has gone")
    assert send(backend, hook, 1) == 0
    assert not backend.elements.read(1, 7, 0, [0, 1])
    assert [type(one) for one in backend.wait(0.0)] == [Lost, Back]
    assert backend.wait(None) == []
    assert told(workers, HookTask) == told(workers, ReadElements) == []
    assert send(backend, hook, 0, 1) == 1
    assert told(workers, HookTask) == [0, 1]
    while backend._sent:
        backend.wait(WATCHDOG_S)


def test_a_flow_ends_although_a_worker_was_ended_between_two_steps() -> None:
    def make() -> df.Flow:
        actor = df.place(Model, name="actor")
        gen = df.place(Model, on=[1], follows=actor, name="gen")
        calls = [
            df.call(gen.weigh, "x -> y", rows=4),
            df.call(actor.late, "y", rows=ROWS, after=[df.publish(gen)]),
        ]
        return df.Flow(calls, source=itertools.islice(numbers(), 3 * ROWS))

    flow, workers = in_threads(make)
    workers.left = 1
    with flow:
        steps = flow.steps()
        next(steps)
        flow._backend.end(1, "it is late")
        assert [step.number for step in steps] == [2, 3]
        assert flow.ask("stats")["restarts"] == 1
