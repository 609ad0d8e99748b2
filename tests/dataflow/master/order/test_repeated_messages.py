"""Messages that arrive twice count once: orders, aborts, reports, flushes; and what belongs to a call that has failed."""

from __future__ import annotations

import random

import pytest
from random_plans import random_plan
from seeds import noted
from simulated_flow import Worker, World
from test_order_rules import answers, call, given, only_answers, tickets
from test_order_simulation import check

from softs_fast.dataflow.master.order import executor as executors
from softs_fast.dataflow.master.order.executor import Executor
from softs_fast.dataflow.master.order.sequencer import Sequencer
from softs_fast.dataflow.master.order.steps import Abort, Step


class RepeatingWorld(World):
    """Each message of the master, and each report, may arrive again, at once or later."""

    def hear(self, worker: Worker, message: Step | Abort) -> None:
        super().hear(worker, message)
        if worker.is_alive and self.random.random() < 0.5:
            self.later(
                self.random.choice([0.0, self.random.random() * 30]), lambda: self.again(worker, message)
            )

    def again(self, worker: Worker, message: Step | Abort) -> None:
        before = (worker.executor.inside, worker.executor.waiting)
        if isinstance(message, Step):
            assert worker.executor.receive(message) is False
        else:
            assert worker.executor.abort(message) == "gone"
        assert (worker.executor.inside, worker.executor.waiting) == before

    def report(self, worker: Worker, ticket: int, reason: str | None) -> None:
        super().report(worker, ticket, reason)
        if self.random.random() < 0.5:
            super().report(worker, ticket, self.random.choice([None, "again"]))


def test_histories_in_which_messages_arrive_twice() -> None:
    for seed in range(40):
        choice = random.Random(seed)
        plan = random_plan(choice)
        n_groups = plan.partitions["train"].groups_per_step * 2
        workers = {worker for one in plan.functions for worker in one.workers}
        deaths = tuple(choice.randint(1, 300) for _ in range(choice.choice([0, len(workers) // 3])))
        world = RepeatingWorld(seed, plan, n_groups, deaths=deaths, failures=choice.choice([0.0, 0.02]))
        with noted(seed):
            world.run()
            check(world)
            assert set(world.finished.values()) <= {1}


def test_what_is_remembered_of_tickets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor[Step]()
    n = executors._MOST_KNOWN + 10
    for ticket in range(1, n):
        assert executor.receive(given(ticket, ticket))
        executor.enter()
        executor.leave()
    assert len(executor._known) == executors._MOST_KNOWN
    assert not executor.receive(given(1, 1)), "older than all that is remembered"


def test_steps_of_a_call_that_has_failed_here_are_void() -> None:
    executor = Executor[Step]()
    for ticket, number in ((1, 7), (2, 8), (3, 7)):
        executor.receive(given(ticket, number))
    void = []
    while (order := executor.enter()) is not None:
        void.append(executor.is_void(order))
        executor.leave()
        if order.ticket == 1:
            executor.fail(order.call)
    assert void == [False, False, True]


def test_a_flush_that_names_a_call_again_changes_nothing() -> None:
    order = Sequencer([0], depth=1)
    for number in (1, 2, 3):
        order.park(call(number, 0, oldest=-1))
    order.flush([2, 2])
    order.flush([2])
    assert tickets(order.advance(0.0)) == [(1, 2)]
    order.flush([2, 1])  # 2 has its ticket
    order.flush([1])
    assert tickets(order.advance(0.0)) == []
    order.report(0, 1)
    said = order.advance(0.0)
    assert (answers(said), tickets(said)) == ([(2, "f2", None)], [(2, 1)])
    assert [one.number for one in order.parked] == [3]


def test_a_call_that_is_withdrawn_gets_no_ticket_and_no_answer() -> None:
    order = Sequencer([0], depth=1)
    order.park(call(1, 0))
    order.offer(call(2, 0))
    order.offer(call(3, 0, oldest=1))
    order.advance(0.0)
    assert [getattr(order.withdraw(number), "number", None) for number in (1, 2, 3, 9)] == [1, None, 3, None]
    assert order.withdraw(1) is None
    order.report(0, 1)
    assert only_answers(order.advance(0.0)) == [(2, "f2", None)]
    with pytest.raises(ValueError, match=r"flush names calls \[1\]"):
        order.flush([1])
