"""Weights that several workers show: when a hook goes on, which ticket they are of, and what a worker shows itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_worker_loop import Script
from torch import nn

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.messages import HookTask, Message, Result, State
from softs_fast.dataflow.process.loop import WorkerLoop
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.ids import state_id
from softs_fast.dataflow.store.weights.exchange import show
from softs_fast.dataflow.store.weights.held import held_tensors


class Model(df.Role):
    """Two tensors, of which two replicas show one each."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Linear(1, 1)
        with torch.no_grad():
            self.net.weight.fill_(1.0)
            self.net.bias.fill_(2.0)

    def read(self, rows: df.Rows) -> None: ...

    def train(self, rows: df.Rows) -> None: ...


def declare(source: list[int], target: list[int], layout: str, model: type[df.Role] = Model) -> Declaration:
    actor = df.place(Model, f"dp{len(source)}", on=source, name="actor")
    gen = df.place(model, layout, on=target, follows=actor, name="gen")
    return Declaration(
        (
            df.call(gen.read, "x", rows=2),
            df.call(actor.train, "x", rows=2, after=[df.publish(gen)]),
        )
    )


def hook(declared: Declaration, ticket: int) -> HookTask:
    return HookTask(ticket, ticket, 0, None, declared.roles.index(role_of(declared, "actor")), 1)


def role_of(declared: Declaration, name: str) -> df.Placement:
    (found,) = (role for role in declared.roles if role.name == name)
    return found


@pytest.fixture
def stores() -> Iterator[list[DataManager]]:
    made = [DataManager(i, max_bytes=1 << 20) for i in range(3)]
    yield made
    for one in made:
        one.close()


class Watching(Script):
    """Notes the weight of a target at the end of each step."""

    def __init__(self, *messages: Message) -> None:
        super().__init__(*messages)
        self.net: Any = None
        self.weights: list[float] = []

    def send(self, message: Message) -> None:
        super().send(message)
        if isinstance(message, Result):
            self.weights.append(self.net.weight.item())


def run(
    stores: list[DataManager], declared: Declaration, *messages: Message
) -> tuple[list[Any], nn.Linear, Any]:
    link = Watching(*messages)
    loop = WorkerLoop(0, declared, link, stores[0])
    loop.setup()
    link.net = net = loop._objects[role_of(declared, "gen")].net
    loop.run()
    return link.sent, net, loop


def state(
    declared: Declaration, store: DataManager, ticket: int, value: float, *, alone: bool = False
) -> State:
    """What a worker of the actor shows for a hook."""
    tensors = {"net.weight": torch.full((1, 1), value), "net.bias": torch.full((1,), -value)}
    actor = role_of(declared, "actor")
    # A layout in which each worker believes that it is the only one.
    placed = df.place(Model, on=[store.worker], name="actor") if alone else actor
    held = held_tensors(placed, store.worker, tensors)
    return State(ticket, show(store, state_id(ticket), declared.roles.index(actor), held))


def test_a_hook_waits_for_what_it_needs_of_its_own_ticket(stores: list[DataManager]) -> None:
    declared = declare([1, 2], [0], "dp1")
    old, late = (state(declared, stores[worker], 1, 5.0) for worker in (1, 2))
    new = [state(declared, stores[worker], 2, 7.0) for worker in (1, 2)]
    # Each shows one of two tensors.
    assert [len(one.shown.layout.regions) for one in new] == [1, 1]
    first, second = hook(declared, 1), hook(declared, 2)
    sent, net, loop = run(stores, declared, first, second, new[0], old, new[1], late)
    assert [(one.ticket, one.failure) for one in sent] == [(1, None), (2, None)]
    assert loop.link.weights == [5.0, 7.0]
    assert (net.weight.item(), net.bias.item()) == (7.0, -7.0)
    assert not loop._states
    # What comes again after the end of its step is not used.
    sent, net, loop = run(stores, declared, first, old, late, second, old, new[0], late, new[1])
    assert (loop.link.weights, loop._states) == ([5.0, 7.0], {})


def test_a_hook_goes_on_without_those_that_it_does_not_need(stores: list[DataManager]) -> None:
    declared = declare([1, 2], [0], "dp1")
    first, late = (state(declared, stores[worker], 1, 5.0, alone=True) for worker in (1, 2))
    sent, net, loop = run(stores, declared, hook(declared, 1), first, late)
    assert [(one.ticket, one.failure) for one in sent] == [(1, None)]
    assert (net.weight.item(), net.bias.item()) == (5.0, -5.0)
    # What arrives behind the end of the step is not kept.
    assert not loop._states


def test_what_was_freed_with_an_older_ticket_is_refused(stores: list[DataManager]) -> None:
    declared = declare([1, 2], [0], "dp1")
    shown = [state(declared, stores[worker], 1, 5.0) for worker in (1, 2)]
    for worker in (1, 2):
        stores[worker].free([state_id(1)])
    (ended,), net, _ = run(stores, declared, hook(declared, 1), *shown)
    assert ended.failure is not None
    assert "are gone, the first at" in ended.failure.reason
    assert ended.failure.text.startswith("Unreadable: ")
    assert (net.weight.item(), net.bias.item()) == (1.0, 2.0)


def test_a_worker_shows_its_part_before_it_waits(stores: list[DataManager]) -> None:
    declared = declare([0, 1], [1, 0], "dp2")
    other = state(declared, stores[1], 1, 5.0)
    sent, _, _ = run(stores, declared, hook(declared, 1), other)
    assert [type(one) for one in sent] == [State, Result]
    assert sent[0].shown.worker == 0


def test_roles_in_one_layout_on_the_same_workers_show_nothing(stores: list[DataManager]) -> None:
    declared = declare([0, 1], [0, 1], "dp2")
    sent, net, _ = run(stores, declared, hook(declared, 1))
    assert [type(one) for one in sent] == [State, Result]
    assert sent[0].shown.layout.regions == ()
    assert sent[1].failure is None
    assert net.weight.item() == 1.0


def test_a_worker_that_has_another_tensor_is_told_that_none_shows_it(stores: list[DataManager]) -> None:
    class Larger(Model):
        def setup(self, mesh: df.Mesh) -> None:
            super().setup(mesh)
            self.second = nn.Linear(1, 1)

    declared = declare([0, 1], [0, 1], "dp2", Larger)
    # The other worker has one tensor less, and so shows nothing.
    other = State(1, show(stores[1], state_id(1), declared.roles.index(role_of(declared, "actor")), None))
    sent, _, _ = run(stores, declared, hook(declared, 1), other)
    assert "weights of role 'actor': it lacks second.bias, second.weight" in sent[1].failure.reason
