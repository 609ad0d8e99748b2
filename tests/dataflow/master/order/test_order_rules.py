"""Single rules of the order: epochs, tickets, flushes, aborts, late reports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import softs_fast.dataflow.master
from softs_fast.dataflow.master.order.executor import Executor
from softs_fast.dataflow.master.order.sequencer import Sequencer
from softs_fast.dataflow.master.order.steps import Abort, CallState, Kind, Output, Step

PURE = {"__future__", "collections", "collections.abc", "dataclasses", "enum", "heapq", "itertools", "typing"}


def call(number: int, *workers: int, oldest: int = 0, seconds: float = 1.0) -> CallState:
    """A call of one main step."""
    step = Step(Kind.MAIN, frozenset(workers), expected_s=seconds)
    return CallState(number, f"f{number}", (step,), oldest)


def tickets(outputs: list[Output]) -> list[tuple[int, int]]:
    """The pairs of ticket and call that were given."""
    orders = [one[1] for one in outputs if not isinstance(one, CallState)]
    return sorted({(one.ticket, one.call) for one in orders if isinstance(one, Step)})


def answers(outputs: list[Output]) -> list[tuple[int, str, str | None]]:
    """Number, name and reason of each call that has its answer."""
    return [(one.number, one.name, one.reason) for one in outputs if isinstance(one, CallState)]


def only_answers(outputs: list[Output]) -> list[tuple[int, str, str | None]]:
    """As `answers`; nothing else is said."""
    assert all(isinstance(one, CallState) for one in outputs)
    return answers(outputs)


def given(ticket: int, number: int) -> Step:
    """A step with a ticket."""
    return Step(Kind.MAIN, frozenset({0}), ticket=ticket, call=number)


def aborts(outputs: list[Output]) -> list[tuple[int, int]]:
    return [
        (one[0], one[1].ticket)
        for one in outputs
        if not isinstance(one, CallState) and isinstance(one[1], Abort)
    ]


def test_the_cores_have_no_clock_no_socket_and_no_tensor() -> None:
    for file in Path(str(softs_fast.dataflow.master.__file__)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= PURE
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module in PURE


def test_posted_calls_wait_for_a_flush_that_names_them_and_come_first() -> None:
    order = Sequencer([0])
    order.park(call(1, 0, oldest=-1))
    order.park(call(2, 0, oldest=-1))
    assert tickets(order.advance(0.0)) == []
    order.offer(call(3, 0, oldest=5))
    order.flush([2])
    assert tickets(order.advance(0.0)) == [(1, 2), (2, 3)]
    assert [one.number for one in order.parked] == [1]
    with pytest.raises(ValueError, match=r"flush names calls \[7\], which are not parked; parked are \[1\]"):
        order.flush([1, 7])
    assert [one.number for one in order.parked] == [1], "nothing is flushed then"


@pytest.mark.parametrize("has_late_hooks", [False, True])
def test_moves_of_an_epoch_come_first_and_hooks_of_two_calls_nest(has_late_hooks: bool) -> None:
    order = Sequencer([0, 1, 2], has_late_hooks=has_late_hooks)
    kinds_of = (Kind.MOVE, Kind.PRE, Kind.MAIN, Kind.POST)
    order.offer(CallState(1, "large", tuple(Step(kind, frozenset({0, 1, 2})) for kind in kinds_of)))
    order.offer(CallState(2, "small", tuple(Step(kind, frozenset({0})) for kind in kinds_of)))
    said = [one[1] for one in order.advance(0.0) if not isinstance(one, CallState)]
    kinds = {one.ticket: (one.call, one.kind) for one in said if isinstance(one, Step)}
    listed = [kinds[ticket] for ticket in sorted(kinds)]
    assert {kind for _, kind in listed[:2]} == {Kind.MOVE}
    assert listed[2:] == [(call, kind) for call in (2, 1) for kind in kinds_of[1:]]


def test_a_call_waits_for_the_late_hooks_of_one_that_encloses_its_workers() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    own, both = frozenset({0}), frozenset({0, 1})
    order.offer(CallState(1, "first", (Step(Kind.PRE, own), Step(Kind.MAIN, own), Step(Kind.POST, both))))
    order.offer(CallState(2, "plain", (Step(Kind.MAIN, own),)))
    order.offer(CallState(3, "other", (Step(Kind.MAIN, frozenset({1})),)))
    said = tickets(order.advance(0.0))
    assert sorted(number for _, number in said) == [1, 1, 3]
    for ticket, number in said:
        if number == 1:
            order.report(0, ticket)
    assert [number for _, number in tickets(order.advance(0.0))] == [1, 2]


def test_a_worker_has_at_most_so_many_unfinished_mains() -> None:
    order = Sequencer([0, 1], depth=2)
    for number in (1, 2, 3, 4):
        order.offer(call(number, 0))
    order.offer(call(5, 1))
    assert {number for _, number in tickets(order.advance(0.0))} == {1, 2, 5}
    order.report(0, next(step.ticket for step in order.tickets if step.call == 1))
    assert [number for _, number in tickets(order.advance(0.0))] == [3]


def test_a_call_of_many_workers_does_not_starve() -> None:
    order = Sequencer([0, 1], depth=1)
    order.offer(call(1, 0))
    order.advance(0.0)
    order.offer(call(2, 0, 1, oldest=1))
    order.offer(call(3, 1, oldest=2))  # worker 1 is free, but call 2 is older and waits for it, too
    assert tickets(order.advance(0.0)) == []
    order.report(0, 1)
    assert [number for _, number in tickets(order.advance(0.0))] == [2]


def test_a_death_fails_the_calls_of_the_worker_and_spares_the_others() -> None:
    order = Sequencer([0, 1, 2])
    order.offer(CallState(1, "both", tuple(Step(kind, frozenset({0, 1})) for kind in (Kind.MAIN, Kind.POST))))
    order.offer(call(2, 2))
    order.advance(0.0)
    order.park(call(3, 1))
    order.report(0, 1)
    order.lose(1, "worker 1 died")
    order.lose(1, "again")
    outputs = order.advance(0.0)
    assert set(answers(outputs)) == {(1, "both", "worker 1 died"), (3, "f3", "worker 1 died")}
    assert all(worker == 0 for worker, _ in aborts(outputs))
    for worker, ticket in aborts(outputs):
        order.report(worker, ticket, "aborted")
    assert [step.call for step in order.tickets] == [2]
    order.offer(call(4, 1))
    assert answers(order.advance(0.0)) == [(4, "f4", "workers [1] are lost")]


def train_and_publish(number: int, *own: Step) -> CallState:
    steps = (Step(Kind.MAIN, frozenset({0})), *own, Step(Kind.POST, frozenset({0, 1}), "publish"))
    return CallState(number, "train", (*steps, Step(Kind.POST, frozenset({0}), "save")))


def test_a_worker_gets_a_hook_of_others_when_their_main_part_has_ended() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    order.offer(train_and_publish(1, Step(Kind.POST, frozenset({0}), "evaluate")))
    assert tickets(order.advance(0.0)) == [(1, 1), (2, 1)]  # the hook of the same worker at once
    order.offer(call(2, 1))
    assert tickets(order.advance(0.0)) == [(3, 2)]  # before the weights come
    order.report(0, 1)
    assert not order.advance(0.0)
    order.report(0, 2)
    order.offer(call(3, 0))
    assert order.has_run(1)
    # Hooks that are due come before what begins now, in their own order.
    assert tickets(order.advance(0.0)) == [(4, 1), (5, 1), (6, 3)]
    for worker, ticket in ((0, 4), (1, 4), (0, 5)):
        order.report(worker, ticket)
    assert answers(order.advance(0.0)) == [(1, "train", None)]


@pytest.mark.parametrize("is_due", [False, True])
def test_a_death_before_a_hook_has_its_ticket_fails_the_call(is_due: bool) -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    order.offer(train_and_publish(1))
    order.advance(0.0)
    if is_due:
        order.report(0, 1)
    order.lose(1, "worker 1 died")
    outputs = order.advance(0.0)
    assert answers(outputs) == [(1, "train", "worker 1 died")]
    assert aborts(outputs) == ([] if is_due else [(0, 1)])
    order.report(0, 1)
    order.offer(call(2, 0))
    order.offer(call(3, 0))
    assert tickets(order.advance(0.0)) == [(2, 2), (3, 3)]  # nothing counts the call of before


def test_hooks_of_a_main_part_that_failed_get_no_tickets() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    order.offer(train_and_publish(1))
    order.advance(0.0)
    order.report(0, 1, "it failed")
    assert only_answers(order.advance(0.0)) == [(1, "train", "it failed")]
    assert not order.tickets
    assert order.advance(0.0) == []


def test_a_call_of_hooks_alone_has_its_tickets_at_once() -> None:
    order = Sequencer([0, 1], has_late_hooks=True)
    order.offer(CallState(1, "publish", (Step(Kind.POST, frozenset({0, 1})),)))
    assert tickets(order.advance(0.0)) == [(1, 1)]


def test_hooks_come_with_their_main_part_where_nothing_overlaps() -> None:
    order = Sequencer([0, 1])
    order.offer(train_and_publish(1))
    assert tickets(order.advance(0.0)) == [(1, 1), (2, 1), (3, 1)]


def test_a_report_without_a_ticket_is_dropped_and_what_has_tickets_is_not_cancelled() -> None:
    order = Sequencer([0])
    order.offer(call(1, 0))
    order.advance(0.0)
    order.report(0, 2)
    assert [step.ticket for step in order.tickets] == [1]
    assert order.cancel(1, "too late") is False
    order.park(call(2, 0))
    assert order.cancel(2, "not wanted") is True
    assert answers(order.advance(0.0)) == [(2, "f2", "not wanted")]


def test_an_executor_runs_by_ticket_and_refuses_what_is_out_of_order() -> None:
    executor = Executor[Step]()
    assert all(executor.receive(given(ticket, ticket)) for ticket in (1, 4, 5))
    with pytest.raises(ValueError, match="ticket 3 arrived after ticket 5"):
        executor.receive(given(3, 3))
    first = executor.enter()
    assert first is not None
    assert (first.ticket, executor.enter()) == (1, None)
    assert executor.abort(Abort(1, "")) == "inside"
    assert executor.abort(Abort(4, "")) == "skipped"
    assert executor.abort(Abort(4, "")) == "gone"
    assert executor.abort(Abort(9, "")) == "gone"
    assert executor.leave().ticket == 1
    with pytest.raises(ValueError, match="no step is running"):
        executor.leave()
