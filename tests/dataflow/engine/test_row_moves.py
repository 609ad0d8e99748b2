"""The steps of calls, and what `data_transfer` brings to which worker before and after them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from parts import random_work, work_of

import softs_fast.dataflow as df
from softs_fast import records
from softs_fast.dataflow.declare.capacity import plan_of
from softs_fast.dataflow.declare.graph import graph_of
from softs_fast.dataflow.engine.cutting import parts_of
from softs_fast.dataflow.engine.results import CallResult
from softs_fast.dataflow.engine.row_moves import RowMoves, steps_of
from softs_fast.dataflow.link.messages import Columns, MoveTask
from softs_fast.dataflow.master.holdings import Holdings
from softs_fast.dataflow.master.master import Master
from softs_fast.dataflow.master.order.steps import CallState, Kind, Step
from softs_fast.dataflow.master.rows.records import Taken


class Model(df.Role):
    def make(self, rows: df.Rows) -> None: ...
    def read(self, rows: df.Rows) -> None: ...


def note(role: Model) -> None: ...


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
def moves() -> tuple[RowMoves, Master]:
    order, columns = graph_of([make, read], {"train": ["x"]})
    plan = plan_of(order, columns, group=1, max_age=0, ahead=None, window=1)
    master = Master(plan, lambda function, taken: (), [0, 1])
    master.held.begin({0: "a", 1: "b"})
    calls = {one.name: one for one in (make, read)}
    return RowMoves(calls, 1, master.held), master


def state_of(master: Master, call: df.MFCDef, ids: tuple[int, ...] = (0, 1)) -> CallState:
    (function,) = [one for one in master.plan.functions if one.name == call.name]
    return CallState(1, call.name, (), function=function, taken=Taken(ids, ()))


def test_the_steps_of_a_call(moves: tuple[RowMoves, Master]) -> None:
    _, master = moves

    def kinds(call: df.MFCDef, *, brings: bool) -> list[Kind]:
        state = state_of(master, call)
        assert state.function is not None
        assert state.taken is not None
        return [one.kind for one in steps_of(call, state.function, state.taken, brings=brings)]

    assert kinds(read, brings=True) == [Kind.MOVE, Kind.PRE, Kind.MAIN]
    assert kinds(read, brings=False) == [Kind.PRE, Kind.MAIN]
    assert kinds(make, brings=True) == [Kind.MAIN, Kind.POST]


def test_inputs_are_those_of_the_part_of_the_worker(moves: tuple[RowMoves, Master]) -> None:
    some, master = moves
    main, hook = work_of([0], [3], [9]), df.data_transfer(columns="y")
    work = records.replace(
        main, columns=Columns.of({"y": main.columns.places["x"], "z": main.columns.places["i"]})
    )
    order = Step(Kind.MOVE, frozenset({0, 1}), hook, ticket=5)
    bring = some.inputs(order, state_of(master, read), lambda: work)
    assert bring() == MoveTask(5, 0, work.ids, Columns.of({"y": work.columns.places["y"]}))
    assert some.inputs(order, state_of(master, read), lambda: None)() is None, "all rows were dropped"


def test_outputs_are_cut_as_those_of_a_call_without_rows_that_have_gone() -> None:
    role = df.place(Model, "dp3 tp2", on=range(6), name="many")
    call = df.call(role.read, "x, i", rows=48, interface=df.Interface.INFERENCE)
    for seed in range(40):
        chance = np.random.default_rng(seed)
        group = int(chance.integers(1, 4))
        work = random_work(chance, group, 6, is_ragged=bool(chance.integers(2)))
        # Ids of whole groups: the first one has lost a column.
        ids = tuple(range(len(work.ids) + group))
        held = Holdings()
        for at in range(0, len(ids), group):
            held.admit(ids[at : at + group])
        work = records.replace(work, ids=ids[group:])
        held.put(work.ids, work.columns.places, 0)
        some = RowMoves({}, group, held)
        hook = replace(df.data_transfer(role), columns=work.columns.names, ids=ids)
        order = Step(Kind.POST, frozenset(role.on), hook, ticket=5)
        expected = {
            worker: MoveTask(5, 0, one.ids, one.columns)
            for worker, one in parts_of(work, call, group).items()
            if one.part is not None and one.part.n_real
        }
        found = {worker: some.outputs(worker, order)() for worker in role.on}
        assert {worker: one for worker, one in found.items() if one is not None} == expected
        some.ended(5)
        assert not some._parts


def test_a_transfer_after_a_call_is_a_call_of_its_own(moves: tuple[RowMoves, Master]) -> None:
    some, master = moves
    (after,) = some.follow(state_of(master, make), CallResult(make.name, (0, 1)))
    assert (after.kind, after.workers) == (Kind.POST, {0, 1})
    assert (after.work.columns, after.work.ids) == (("y",), (0, 1))  # type: ignore[attr-defined]
    some.begun(9)
    assert [some.followed(number) for number in (8, 9, 9)] == [False, True, False]
    assert not some._following


def test_times_of_steps_of_one_name_are_summed() -> None:
    call = CallState(1, "train", ())
    for ticket, seconds in ((4, 1.0), (4, 3.0), (5, 2.0)):
        call.add_time("publish", ticket, seconds)
    call.add_time("main", 3, 0.5)
    assert call.seconds == {"publish": 5.0, "main": 0.5}
