"""The loop of a worker: tickets in order, aborts of what waits, weights that come late, rows that are freed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import softs_fast.dataflow as df
from softs_fast import records
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import (
    Abort,
    Columns,
    End,
    Failure,
    Free,
    HookTask,
    MainTask,
    Message,
    Result,
    State,
)
from softs_fast.dataflow.process.loop import WorkerLoop
from softs_fast.dataflow.store import DataManager, Place
from softs_fast.dataflow.store.weights.exchange import show
from softs_fast.dataflow.store.weights.held import held_tensors
from softs_fast.dataflow.store.weights.shown import Shown
from softs_fast.errors import PeerLost


class Model(df.Role):
    """One weight."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(1, 1)

    def read(self, rows: df.Rows) -> dict[str, Any]:
        rows.drop([0], "first")
        return {"y": rows["x"] + 1, "n": rows.n_rows}

    def train(self, rows: df.Rows) -> None: ...


actor = df.place(Model, on=[1], name="actor")
gen = df.place(Model, follows=actor, name="gen")
declaration = Declaration(
    (
        df.call(gen.read, "x -> y", rows=2),
        df.call(actor.train, "y", rows=2, after=[df.publish(gen)]),
    )
)


number = declaration.roles.index(actor)


class Script:
    """A link that gives messages one by one, and ends with the connection."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.sent: list[Any] = []
        self.published: dict[str, bytes] = {}
        self.on_empty = threading.Event()

    def publish(self, what: str, value: bytes) -> None:
        self.published[what] = value

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float | None) -> list[Message]:
        if not self.messages and timeout_s == 0:
            return []
        if not self.messages:
            raise PeerLost("the script has ended")
        return [self.messages.pop(0)]

    def close(self) -> None: ...


@pytest.fixture
def store() -> Iterator[DataManager]:
    with DataManager(5, max_bytes=1 << 20) as made:
        yield made


def run(store: DataManager, *messages: Message) -> tuple[list[Result], WorkerLoop]:
    link = Script(*messages)
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    loop.run()
    return link.sent, loop


def main(ticket: int, places: tuple[Place, ...]) -> MainTask:
    return MainTask(
        *(ticket, ticket, "gen.read", (7, 8), Columns.of({"x": places}), ({}, {"a": 1}), 0, 0, True, 0)
    )


def hook(ticket: int) -> HookTask:
    return HookTask(ticket, ticket, 0, None, 1, 1)


def test_a_function_runs_on_rows_of_shared_memory(store: DataManager) -> None:
    places = store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)])
    (ended,), _ = run(store, main(1, places))
    assert (ended.ids, ended.numbers, ended.dropped, ended.tags) == (
        (7, 8),
        {"n": 2.0},
        {7: "first"},
        {8: {"a": 1}},
    )
    assert store.get(ended.columns.places["y"]) == [2.0, 3.0]
    assert ended.n_bytes == 8
    assert ended.failure is None


def test_rows_that_are_freed_go_and_reading_them_fails_by_name(store: DataManager) -> None:
    places = store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)])
    (ended,), _ = run(store, Free((7, 8)), main(1, places))
    assert store.n_bytes == 0
    assert ended.failure is not None
    assert "2 of 2 values of worker 5 are gone" in ended.failure.reason
    assert ended.unread


def test_a_failure_of_the_function_is_none_of_reading(
    store: DataManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreadable(Exception):
        """As the one of the package is named."""

    def read(self: Model, rows: df.Rows) -> None:
        raise Unreadable("a file")

    monkeypatch.setattr(Model, "read", read)
    places = store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)])
    (ended,), _ = run(store, main(1, places))
    assert ended.failure is not None
    assert ended.failure.text.startswith("Unreadable: a file")
    assert not ended.unread


def test_a_step_that_waits_is_skipped_and_its_end_is_said(store: DataManager) -> None:
    places = store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)])
    link = Script()
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    for message in (
        main(1, places),
        main(2, places),
        Abort(2, "worker 3 is lost"),
        Abort(9, "unknown"),
    ):
        loop._take(message)
    loop.run()
    assert [(one.ticket, one.failure) for one in link.sent] == [
        (2, Failure("worker 3 is lost", "worker 3 is lost")),
        (1, None),
    ]


def test_orders_and_aborts_that_arrive_twice_count_once(store: DataManager) -> None:
    places = store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)])
    link = Script()
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    for message in (main(1, places), main(2, places), main(1, places), *[Abort(2, "lost")] * 2):
        loop._take(message)
    link.messages = [main(1, places), main(2, places), Abort(1, "late")]
    loop.run()
    assert [(one.ticket, one.failure) for one in link.sent] == [(2, Failure("lost", "lost")), (1, None)]
    assert link.sent[1].ids == (7, 8)


def test_steps_of_a_call_that_has_failed_do_not_run_though_the_abort_is_late(store: DataManager) -> None:
    places = store.put("x", [7, 8], [torch.tensor(1.0), torch.tensor(2.0)])
    store.free([7, 8])
    link = Script(main(1, places), records.replace(hook(2), call=1), hook(3), Abort(3, "it may wait"))
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    loop.run()
    first, second, third = link.sent
    assert first.unread
    why = "an earlier step of the same call has failed here"
    assert (second.ticket, second.failure, second.began_s) == (2, Failure(why, why), 0.0)
    assert third.failure is not None
    assert third.failure.reason == "it may wait", "a step of another call was entered"


def shown(store: DataManager, tensors: dict[str, torch.Tensor]) -> Shown:
    """What the actor shows, as if another worker held it."""
    made = show(store, 99, number, held_tensors(actor, 1, tensors))
    return replace(made, place=records.replace(made.place, worker=1))


@pytest.mark.parametrize("is_early", [True, False])
def test_weights_of_another_worker_are_awaited(store: DataManager, is_early: bool) -> None:
    tensors = {"net.weight": torch.full((1, 1), 3.0), "net.bias": torch.full((1,), 4.0)}
    state = State(1, shown(store, tensors))
    link = Script(*([state, hook(1)] if is_early else [hook(1), state]))
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    net = loop._objects[gen].net
    loop.run()
    assert [one.failure for one in link.sent] == [None]
    assert (net.weight.item(), net.bias.item()) == (3.0, 4.0)
    assert not loop._states


def test_a_hook_that_waits_returns_when_it_is_aborted_or_the_flow_ends(store: DataManager) -> None:
    (ended, *others), _ = run(store, hook(1), hook(2), Abort(1, "worker 1 is lost"), End())
    assert ended.failure is not None
    assert ended.failure.reason == "worker 1 is lost"
    assert [one.ticket for one in others] in ([], [2])


def test_weights_with_other_names_are_refused(store: DataManager) -> None:
    (ended,), _ = run(store, hook(1), State(1, shown(store, {"net.weight": torch.ones(1, 1)})))
    assert ended.failure is not None
    assert "weights of role 'actor': it lacks net.bias" in ended.failure.reason


def test_a_worker_without_orders_waits_once_until_another_thread_ends_it(store: DataManager) -> None:
    class Waiting(Script):
        """Blocks until it is closed."""

        def __init__(self) -> None:
            super().__init__()
            self.waits: list[float | None] = []
            self.is_waiting, self.is_closed = threading.Event(), threading.Event()

        def receive(self, timeout_s: float | None) -> list[Message]:
            self.waits.append(timeout_s)
            self.is_waiting.set()
            assert self.is_closed.wait(45)
            raise PeerLost("it was closed")

        def close(self) -> None:
            self.is_closed.set()

    link = Waiting()
    loop = WorkerLoop(0, declaration, link, store)
    loop.setup()
    thread = threading.Thread(target=loop.run)
    thread.start()
    assert link.is_waiting.wait(45)
    loop.end()
    thread.join(45)
    assert not thread.is_alive()
    assert link.waits == [None], "no wait that ends by itself"
