"""Hooks that restore workers: which of their failures are errors of the flow, and which are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flow_threads import in_threads, when
from restart_flow import Model, numbers

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.hooks import Load
from softs_fast.dataflow.engine.recovery import Recovery
from softs_fast.dataflow.link.messages import Result
from softs_fast.dataflow.master.master import Master
from softs_fast.dataflow.master.order.steps import CallState, Step


class Restored:
    """A flow of a frozen role on worker 2, one that follows it on worker 1, and another frozen one on worker 3."""

    def __init__(self) -> None:
        self.frozen = df.place(Model, on=[2], frozen=True, name="frozen")
        self.follower = df.place(Model, on=[1], follows=self.frozen, name="follower")
        self.other = df.place(Model, on=[3], frozen=True, name="other")
        calls = [
            df.call(one.weigh, f"x -> y{i}", rows=4)
            for i, one in enumerate((self.frozen, self.follower, self.other))
        ]
        actor = df.place(Model, name="actor")
        flow = df.Flow([*calls, df.call(actor.late, "y0, y1, y2", rows=4)], source=numbers())
        self.master = Master(flow.plan, lambda function, taken: (), flow.declaration.workers)
        self.recovery = Recovery(flow.declaration, self.master)
        #: The orders that have no report, and what was said of answers.
        self.orders: list[tuple[int, Step]] = []
        self.verdicts: list[bool] = []

    def lose(self, worker: int) -> None:
        """The process of a worker has ended."""
        self.recovery.lose(worker, "it was killed")

    def join(self, worker: int) -> None:
        """Another one is there."""
        self.recovery.join(worker, 0.0)

    def turn(self) -> None:
        """Take what the master says."""
        for output in self.master.advance(0.0, automatic=False):
            if isinstance(output, CallState):
                self.verdicts.append(self.recovery.ended(output))
            elif isinstance(output[1], Step):
                self.orders.append((output[0], output[1]))

    def end(self, *, reason: str | None = None) -> None:
        """All workers report what they were told."""
        orders, self.orders = self.orders, []
        for worker, order in orders:
            self.master.order.report(worker, order.ticket, reason)
        self.turn()


def test_loads_that_fail_on_two_workers_at_once_end_the_flow() -> None:
    flow = Restored()
    flow.recovery.noted(Load((role,), folder=Path("gone")) for role in (flow.frozen, flow.other))
    for worker in (2, 3):
        flow.lose(worker)
    for worker in (2, 3):
        flow.join(worker)
    flow.turn()
    assert [worker for worker, _ in flow.orders] == [2, 3]
    flow.end(reason="there is no such folder")
    assert flow.verdicts == [False, False]
    flow.turn()
    assert flow.orders == []


def test_a_worker_that_is_lost_within_its_hook_and_there_again_gets_the_hook_again() -> None:
    flow = Restored()
    flow.lose(1)
    flow.join(1)
    flow.turn()
    assert [worker for worker, _ in flow.orders] == [1, 2]
    flow.lose(1)
    flow.join(1)
    flow.orders = []
    flow.turn()
    flow.turn()
    assert (flow.verdicts, [worker for worker, _ in flow.orders]) == ([True], [1, 2])
    assert 1 in flow.master.order.away
    flow.end()
    assert flow.verdicts == [True, True]
    assert 1 in flow.master.order.alive


def test_a_hook_that_has_ended_well_with_the_process_before_is_repeated() -> None:
    flow = Restored()
    flow.lose(1)
    flow.join(1)
    flow.turn()
    for worker, order in flow.orders:
        flow.master.order.report(worker, order.ticket)
    flow.lose(1)
    flow.join(1)
    flow.orders = []
    flow.turn()
    flow.turn()
    assert [worker for worker, _ in flow.orders] == [1, 2]
    assert 1 in flow.master.order.away


def test_a_source_that_is_lost_within_a_hook_and_there_again_is_no_error() -> None:
    flow = Restored()
    flow.lose(1)
    flow.join(1)
    flow.turn()
    flow.lose(2)
    flow.join(2)
    assert 2 in flow.master.order.alive
    flow.orders = []
    flow.turn()
    flow.turn()
    assert (flow.verdicts, [worker for worker, _ in flow.orders]) == ([True], [1, 2])
    flow.end(reason="it has no such tensor")
    assert flow.verdicts == [True, False]


class Weighing(Model):
    """Has numbers, and no columns."""

    def look(self, rows: df.Rows) -> dict[str, Any]:
        return {"n": rows.n_rows}

    def evaluate(self) -> dict[str, float]:
        return {"weight": 1.0}


@pytest.mark.parametrize("dies", [False, True])
def test_a_call_that_ends_well_after_the_death_of_its_worker_has_its_numbers(dies: bool) -> None:
    def make() -> df.Flow:
        actor = df.place(Weighing, name="actor")
        looking = df.place(Weighing, on=[1], name="looking")
        calls = [
            df.call(looking.look, "x", rows=4, interface=df.Interface.INFERENCE, after=[df.evaluate(actor)]),
            df.call(actor.late, "x", rows=4),
        ]
        return df.Flow(calls, source=numbers())

    flow, workers = in_threads(make)
    workers.left = 1

    def is_hook(worker: int, message: Any) -> bool:
        return worker == 0 and isinstance(message, Result) and bool(message.numbers)

    with flow:
        killed = when(workers.hub, is_hook, lambda: workers.hub.kill(1) if dies else None)
        (step,) = flow.steps(1)
        assert killed.is_set()
    assert step["looking.look"]["n"] == 4
    assert [call.function for call in step.calls].count("looking.look") == 1


def test_rows_that_are_made_again_later_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    flow = Restored()
    flow.lose(1)
    flow.recovery.count_rows()
    flow.master.rows.n_made_again += 16
    flow.master.rows.n_left_out += 3
    for _ in range(2):
        flow.recovery.count_rows()
    texts = [one.getMessage() for one in caplog.records]
    assert texts[0] == "it was killed; it is started again"
    assert [text.partition(":")[0] for text in texts[1:]] == ["16 rows are made again", "3 rows are left out"]
