"""All workers of a hook get one message, which is encoded once, and each other message is its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from waiting import WATCHDOG_S

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.declaration import Declaration
from softs_fast.dataflow.link.control import new_token
from softs_fast.dataflow.link.messages import AbortStep, RunHook
from softs_fast.dataflow.link.stream import ControlMaster, ControlWorker
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.process.orders import Messages
from softs_fast.dataflow.process.work import HookWork, MainWork


class Model(df.Role):
    def train(self, rows: df.Rows) -> Any: ...


def note(role: Model) -> None: ...


def other(role: Model) -> None: ...


actor = df.place(Model, "dp2", on=range(2), name="actor")
note_hook, other_hook = df.hook(note), df.hook(other)
declaration = Declaration((df.call(actor.train, "x", rows=2, after=[note_hook, other_hook]),))
STEP = Step(Kind.POST, frozenset({0, 1}), incarnation=1, ticket=5, call=3)


def test_workers_of_a_hook_get_one_message_and_each_order_has_its_own() -> None:
    messages = Messages(declaration)
    first = messages.of(STEP, HookWork(note_hook, actor, 1))
    assert messages.of(STEP, HookWork(note_hook, actor, 1)) is first
    assert first == RunHook(1, 5, 3, 0, None, 0, 1)
    for order, work in (
        (replace(STEP, ticket=6), HookWork(note_hook, actor, 1)),
        (replace(STEP, ticket=6), HookWork(other_hook, actor, 1)),
        (replace(STEP, ticket=6), HookWork(other_hook, actor, 2)),
    ):
        made = messages.of(order, work)
        assert made == RunHook(1, 6, 3, declaration.hooks.index(work.hook), None, 0, work.step)
    for ids in ((1, 2), (3, 4)):
        main = messages.of(STEP, MainWork("actor.train", ids, {}, [{}, {}], 0, 0, True, 0))
        assert main.ids == ids  # type: ignore[union-attr]


def test_what_was_encoded_once_arrives_at_each_worker() -> None:
    token = new_token()
    master = ControlMaster(token)
    workers = [ControlWorker(master.endpoint, token, number) for number in range(2)]
    try:
        joined = 0
        while joined < 2:
            joined += len(master.receive(WATCHDOG_S))
        one, two = (RunHook(1, ticket, 3, 0, None, 0, 1) for ticket in (5, 6))
        sent = (one, AbortStep(1, 5, "why"), two, one)
        for message in sent:
            for number in range(2):
                master.send(number, message)
        for worker in workers:
            got: list[Any] = []
            while len(got) < len(sent):
                got += worker.receive(WATCHDOG_S)
            assert tuple(got) == sent
    finally:
        for worker in workers:
            worker.close()
        master.close()
