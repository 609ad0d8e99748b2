"""What workers keep for calls goes with the calls: by the main part, by the answer, and by reports that come after it."""

from __future__ import annotations

from typing import Any, cast

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.declare.capacity import plan_of
from softs_fast.dataflow.declare.graph import graph_of
from softs_fast.dataflow.engine.held import HeldRows
from softs_fast.dataflow.engine.results import CallResult
from softs_fast.dataflow.engine.row_moves import RowMoves, steps_of
from softs_fast.dataflow.engine.running import CallTimes
from softs_fast.dataflow.master.master import CallState, Master
from softs_fast.dataflow.master.order.steps import Kind, Order, Step
from softs_fast.dataflow.master.rows.records import Taken
from softs_fast.dataflow.store.ids import kept_id
from softs_fast.dataflow.workers.backend import Backend


class Model(df.Role):
    def make(self, rows: df.Rows) -> None: ...
    def read(self, rows: df.Rows) -> None: ...


def note(role: Model) -> None: ...


class Freed:
    """A backend of two nodes that notes what it is told to free."""

    def __init__(self) -> None:
        self.freed: list[tuple[int, list[int]]] = []

    def free(self, worker: int, ids: list[int]) -> None:
        self.freed.append((worker, ids))

    def nodes(self) -> dict[int, int]:
        return {0: 0, 1: 1}


reader = df.place(Model, "dp2", on=[0, 1], name="reader")
maker = df.place(Model, name="maker")
HOOK = df.data_transfer()
make = df.call(
    maker.make,
    "x -> y",
    rows=2,
    after=[df.data_transfer(reader), df.hook(note)],
    interface=df.Interface.INFERENCE,
)
read = df.call(reader.read, "y", rows=2, before=[df.hook(note), HOOK], interface=df.Interface.INFERENCE)


@pytest.fixture
def backend() -> Freed:
    return Freed()


@pytest.fixture
def moves(backend: Freed) -> tuple[RowMoves, Master]:
    order, columns = graph_of([make, read], {"train": ["x"]})
    plan = plan_of(order, columns, group=1, max_age=0, ahead=None, window=1)
    master = Master(plan, lambda function, taken: (), [0, 1])
    held = HeldRows(cast(Backend, backend))
    calls = {one.name: one for one in (make, read)}
    return RowMoves(calls, 1, master.rows, held, cast(Backend, backend)), master


def state_of(master: Master, call: df.MFCDef, ids: tuple[int, ...] = (0, 1)) -> CallState:
    (function,) = [one for one in master.plan.functions if one.name == call.name]
    return CallState(cast(Any, None), function, Taken(ids, ()), False, 0.0)


def step(kind: Kind, work: object, call: int = 3) -> Order:
    return Order(1, 5, call, Step(kind, frozenset({0, 1}), work))


def test_what_is_kept_goes_with_the_answer(moves: tuple[RowMoves, Master], backend: Freed) -> None:
    some, master = moves
    for worker in (0, 1):
        some.kept(worker, step(Kind.MOVE, HOOK), state_of(master, read), lambda: None)
        some.took(worker, step(Kind.MOVE, HOOK), has_run=True)
    some.took(0, step(Kind.MAIN, read.name), has_run=True)
    some.took(1, step(Kind.MAIN, read.name), has_run=False)  # it was skipped
    assert backend.freed == []
    some.answered(3)
    some.answered(3)
    assert backend.freed == [(1, [kept_id(3)])]


def test_what_arrives_after_the_answer_goes_at_once(moves: tuple[RowMoves, Master], backend: Freed) -> None:
    some, master = moves
    some.kept(0, step(Kind.MOVE, HOOK), state_of(master, read), lambda: None)
    some.answered(3)
    backend.freed.clear()
    some.took(0, step(Kind.MOVE, HOOK), has_run=True)
    assert backend.freed == [(0, [kept_id(3)])]


def test_the_steps_of_a_call(moves: tuple[RowMoves, Master]) -> None:
    _, master = moves
    (reading, making) = (
        steps_of(call, state.function, state.taken)
        for call in (read, make)
        for state in [state_of(master, call)]
        if state.function is not None and state.taken is not None
    )
    assert [one.kind for one in reading] == [Kind.MOVE, Kind.PRE, Kind.MAIN]
    assert [one.kind for one in making] == [Kind.MAIN, Kind.POST]


def test_a_transfer_after_a_call_is_a_call_of_its_own(moves: tuple[RowMoves, Master]) -> None:
    some, master = moves
    result = CallResult(make.name, (0, 1), seconds={"data_transfer": 1.0, "main": 2.0})
    (after,) = some.follow(state_of(master, make), result)
    assert (after.kind, after.workers) == (Kind.POST, {0, 1})
    assert (after.work.columns, after.work.ids) == (("y",), (0, 1))  # type: ignore[attr-defined]
    some.begun(9, result)
    times = CallTimes()
    times.add("data_transfer", 7, 0.5)
    times.add("data_transfer", 7, 0.25)  # of two workers the slower one
    assert not some.followed(8, times)
    assert some.followed(9, times)
    assert not some.followed(9, times)
    assert result.seconds == {"data_transfer": 1.5, "main": 2.0}
    some.begun(10, result)
    assert some.followed(10, None)


def test_times_of_steps_of_one_name_are_summed() -> None:
    times = CallTimes()
    for ticket, seconds in ((4, 1.0), (4, 3.0), (5, 2.0)):
        times.add("publish", ticket, seconds)
    times.add("main", 3, 0.5)
    assert times.by_name() == {"publish": 5.0, "main": 0.5}
