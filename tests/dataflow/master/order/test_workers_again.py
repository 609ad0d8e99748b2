"""Workers that join again: what waits for them, what goes on without them, and what of the one before is dropped."""

from __future__ import annotations

from simulated_flow import make_columns
from test_order_rules import answers, call, only_answers, tickets

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.master import Master
from softs_fast.dataflow.master.order.sequencer import Sequencer
from softs_fast.dataflow.master.order.steps import CallState, Kind, Output, Step
from softs_fast.dataflow.master.rows.records import Taken


def train_and_publish(number: int) -> CallState:
    return CallState(number, "train", (Step(Kind.MAIN, frozenset({0})), Step(Kind.POST, frozenset({0, 1}))))


def parts(outputs: list[Output]) -> list[tuple[int, int]]:
    """Pairs of worker and ticket."""
    return [
        (one[0], one[1].ticket)
        for one in outputs
        if not isinstance(one, CallState) and isinstance(one[1], Step)
    ]


def test_a_call_goes_on_without_a_worker_that_only_takes_part_in_its_hooks() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    order.offer(train_and_publish(1))
    order.advance(0.0)
    order.lose(1, "worker 1 died", returns=True)
    assert order.advance(0.0) == []
    order.report(0, 1)
    assert parts(order.advance(0.0)) == [(0, 2)]
    order.report(0, 2)
    assert only_answers(order.advance(0.0)) == [(1, "train", None)]
    order.offer(train_and_publish(2))
    assert parts(order.advance(0.0)) == [(0, 3), (0, 4)]


def test_calls_wait_for_a_worker_that_joins_again_and_younger_ones_do_not() -> None:
    order = Sequencer([0, 1])
    order.offer(call(1, 1))
    order.advance(0.0)
    order.offer(call(2, 0, 1))
    order.park(call(3, 1))
    order.lose(1, "worker 1 died", returns=True)
    assert {number for number, _, _ in answers(order.advance(0.0))} == {1, 2, 3}
    order.offer(call(4, 1))
    order.offer(call(5, 0, oldest=9))
    assert tickets(order.advance(0.0)) == [(2, 5)]
    assert (order.alive, order.away) == ({0}, {1})
    order.join(1)
    assert (order.alive, order.away) == ({0}, {1})
    assert tickets(order.advance(0.0)) == []
    order.offer(CallState(6, "publish", (Step(Kind.MAIN, frozenset({0, 1})),), restores=True))
    assert tickets(order.advance(0.0)) == [(3, 6)]
    for worker in (0, 1):
        order.report(worker, 3)
    assert tickets(order.advance(0.0)) == []
    order.restored(1)
    assert tickets(order.advance(0.0)) == [(4, 4)]


def test_a_worker_that_is_not_restored_yet_takes_part_in_hooks() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    order.lose(1, "worker 1 died", returns=True)
    order.join(1)
    order.offer(train_and_publish(1))
    assert parts(order.advance(0.0)) == [(0, 1)]
    order.report(0, 1)
    assert parts(order.advance(0.0)) == [(0, 2), (1, 2)]


def test_a_call_goes_on_without_a_worker_that_is_lost_before_its_hooks_have_tickets() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    publish = Step(Kind.POST, frozenset({1}))
    order.offer(CallState(1, "train", (Step(Kind.MAIN, frozenset({0})), publish)))
    order.advance(0.0)
    order.lose(1, "worker 1 died", returns=True)
    order.report(0, 1)
    assert only_answers(order.advance(0.0)) == [(1, "train", None)]
    assert order.advance(0.0) == []


def test_a_worker_that_is_not_started_again_after_all_fails_what_waits_for_it() -> None:
    order = Sequencer([0, 1])
    order.lose(1, "worker 1 died", returns=True)
    order.offer(call(1, 1))
    assert order.advance(0.0) == []
    order.lose(1, "worker 1 is not started again")
    assert answers(order.advance(0.0)) == [(1, "f1", "worker 1 is not started again")]


MAKE = FunctionPlan("make", (1,), ("x",), ("y",), 1, 1)
TRAIN = FunctionPlan("train", (0,), ("y",), (), 1, 1, is_strict=True)


def master() -> Master:
    plan = FlowPlan((MAKE, TRAIN), {"train": PartitionPlan("train", 1, 3, 2)}, {"train": ("x",)})

    def steps_of(function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        return (Step(Kind.MAIN, frozenset(function.workers), function.name),)

    made = Master(plan, steps_of, [0, 1])
    for _ in range(3):
        made.admit("train")
    return made


def orders(outputs: list[Output]) -> list[tuple[str, int, int]]:
    """Function, ticket and call of each order."""
    said = [one[1] for one in outputs if not isinstance(one, CallState)]
    return [(str(one.work), one.ticket, one.call) for one in said if isinstance(one, Step)]


def end(made: Master, worker: int, ticket: int, call: int) -> None:
    make_columns(made, call, worker)
    made.order.report(worker, ticket)


def test_a_training_call_begins_when_the_one_before_cannot_run_again() -> None:
    made = master()
    first = orders(made.advance(0.0))
    assert first == [("make", 1, 1), ("make", 2, 2)]
    for _, ticket, number in first:
        end(made, 1, ticket, number)
    # Rows 0 and 1 are there, and one call is given.
    (train, *_) = said = orders(made.advance(0.0))
    assert [name for name, _, _ in said] == ["train", "make"]
    made.lose(1, "worker 1 died")
    made.advance(0.0)
    made.unread(train[2])
    made.order.report(0, train[1], "unread")
    outputs = made.advance(0.0)
    assert made.repeated == {train[2], said[1][2]}
    assert orders(outputs) == []
    made.order.join(1)
    made.order.restored(1)
    for name, ticket, number in orders(made.advance(0.0)):
        assert name == "make"
        end(made, 1, ticket, number)
    (again, *_) = [one for one in orders(made.advance(0.0)) if one[0] == "train"]
    state = made.calls[again[2]]
    assert state.taken is not None
    assert (state.taken.ids, state.taken.is_repeat) == ((0,), True)


def test_a_training_call_that_was_entered_is_not_given_back() -> None:
    made = master()
    for _, ticket, number in orders(made.advance(0.0)):
        end(made, 1, ticket, number)
    train = next(one for one in orders(made.advance(0.0)) if one[0] == "train")
    made.order.report(0, train[1], "it failed")
    assert answers(made.advance(0.0)) == [(train[2], "train", "it failed")]
    assert made.rows.missing("train") == {"y": 1}
    assert not any(0 in state.taken.ids for state in made.calls.values() if state.taken is not None)


def test_calls_without_tickets_are_taken_back_if_they_have_lost_their_inputs() -> None:
    made = master()
    for _, ticket, number in orders(made.advance(0.0)):
        end(made, 1, ticket, number)
    number = made.post("train", [0], 0.0)
    made.lose(1, "worker 1 died")
    reasons = {number: reason for number, _, reason in answers(made.advance(0.0))}
    assert reasons[number] == "its rows have lost columns, which are made again"
    assert number not in made.repeated
