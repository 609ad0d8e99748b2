"""Moves of rows by hand: the plan, the flush, and rows that change between the two; in one process and in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from flow_threads import in_threads

import softs_fast.dataflow as df
from softs_fast.errors import ConfigError, FlowError


class Model(df.Role):
    """Makes ragged rows, and sums them."""

    def make(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": [torch.ones(int(row_id) % 3 + 1) for row_id in rows.ids]}

    def read(self, rows: df.Rows) -> dict[str, float]:
        return {"sum": float(sum(one.sum() for one in rows.values_of("y")))}


def numbers() -> Iterator[dict[str, Any]]:
    for i in range(100):
        yield {"x": torch.tensor(float(i))}


def make_moves() -> df.Flow:
    maker = df.place(Model, name="maker")
    critic = df.place(Model, "dp2", on=[1, 2], name="critic")
    inference = df.Interface.INFERENCE
    calls = [
        df.call(maker.make, "x -> y", rows=8, interface=inference),
        df.call(critic.read, "y", rows=8, interface=inference),
    ]
    return df.Flow(calls, source=numbers(), group=2)


def critic_of(flow: df.Flow) -> df.Placement:
    (critic,) = [role for role in flow.declaration.roles if role.name == "critic"]
    return critic


@pytest.fixture(params=["one process", "several"])
def flow(request: pytest.FixtureRequest) -> Iterator[df.Flow]:
    made = make_moves() if request.param == "one process" else in_threads(make_moves)[0]
    with made:
        yield made


def made_rows(flow: df.Flow, n: int = 8) -> tuple[int, ...]:
    ids = flow.fetch(n)
    calls = [flow.post("maker.make", ids[i : i + 4]) for i in range(0, n, 4)]
    flow.flush(*calls)
    for call in calls:
        call.result()
    return ids


def test_a_move_has_a_plan_and_waits_for_a_flush(flow: df.Flow) -> None:
    ids = made_rows(flow, 4)
    move = flow.move(ids, "y", to=critic_of(flow))
    lines = move.explain().splitlines()
    assert lines[0].startswith("slices: ")
    assert lines[1] == "between nodes: 0 bytes in 0 pulls; least possible 0"
    # In one process all is there; in several each rank reads its slice in the memory of the maker.
    n_bytes = sum(4 * (row_id % 3 + 1) for row_id in ids)
    assert move.plan.read_bytes == (n_bytes if flow._backend.cuts_rows else 0)
    assert sorted(row_id for some in move.plan.slices for row_id in some.tolist()) == list(ids)
    assert len(move.plan.slices) == (2 if flow._backend.cuts_rows else 1)
    assert "call 2 of data_transfer" in str(_error_of(move))
    flow.flush(move)
    result = move.result()
    assert (result.function, list(result.seconds)) == ("data_transfer", ["data_transfer"])
    later = flow.post("critic.read", ids)
    flow.flush(later)
    assert later.result().numbers["sum"] > 0


def _error_of(move: df.PostedCall) -> FlowError:
    with pytest.raises(FlowError, match="has no result; has a flush named it") as caught:
        move.result()
    return caught.value


def test_rows_that_were_dropped_meanwhile_are_not_moved(flow: df.Flow) -> None:
    ids = made_rows(flow)
    some, none = flow.move(ids, "x, y", to=critic_of(flow)), flow.move(ids[:2], "y", to=critic_of(flow))
    flow.clear_data_cache(ids[:4])
    flow.flush(some, none)
    assert some.result().function == none.result().function == "data_transfer"


def test_rows_that_have_lost_a_column_are_named(flow: df.Flow) -> None:
    ids = made_rows(flow)
    move = flow.move(ids, "y", to=critic_of(flow))
    flow._runner.held.lose(0)  # as after the death of the maker
    flow.flush(move)
    with pytest.raises(
        FlowError, match=r"data_transfer failed.*8 of 8 rows \[0, 1, .*\] have lost y since the move"
    ):
        move.result()


@pytest.mark.parametrize(
    ("move", "complaint"),
    [
        (lambda flow, to: flow.move([0, 1], "z", to=to), r"row 0 has no column 'z' to be moved; it has x, y"),
        (lambda flow, to: flow.move([0, 1], "y -> z", to=to), "are moved as they are"),
        (lambda flow, to: flow.move([0, 99], "y", to=to), "row 99 has no column 'y' .* is not in the flow"),
        (lambda flow, to: flow.move([0], "y", to=to), "1 ids are not those of whole groups of 2 rows"),
        (lambda flow, to: flow.move([1, 2], "y", to=to), "2 ids are not those of whole groups"),
        (lambda flow, to: flow.move([0, 1, 0, 1], "y", to=to), "whole groups of 2 rows, each once"),
        (lambda flow, to: flow.move([], "y", to=to), "a move of y has no rows"),
        (
            lambda flow, to: flow.move([0, 1], "y", to=df.place(Model)),
            "role 'model', which is not in the flow",
        ),
        (lambda flow, to: flow.post(df.data_transfer(to, "y")), r"use move\(ids, columns, to=role\)"),
    ],
)
def test_what_is_refused_before_anything_is_posted(
    move: Callable[[df.Flow, df.Placement], object], complaint: str
) -> None:
    with make_moves() as flow:
        made_rows(flow, 4)
        with pytest.raises(ConfigError, match=complaint):
            move(flow, critic_of(flow))
        assert not flow._runner.master.order.parked


def test_a_flow_that_is_not_open_moves_nothing() -> None:
    flow = make_moves()
    with pytest.raises(ConfigError, match="the flow is not open"):
        flow.move([0, 1], "y", to=critic_of(flow))
