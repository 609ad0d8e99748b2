"""Columns for the workers of a role that reads them later: the slices of a call, and the plan between nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from parts import Model, random_work, work_of

import softs_fast.dataflow as df
from softs_fast.dataflow.engine.cutting import parts_of
from softs_fast.dataflow.engine.moving import parts_of_move, plan_of_move
from softs_fast.dataflow.workers.backend import Backend


@dataclass
class Places:
    """What a plan asks of a backend; copies are other workers that have a row."""

    node_of: dict[int, int]
    copies: dict[int, int] = field(default_factory=dict)
    cuts_rows: bool = True

    def nodes(self) -> dict[int, int]:
        return self.node_of

    def holders(self, column: str, ids: list[int], places: list[Any]) -> list[tuple[int, ...]]:
        return [
            (one.worker, *([self.copies[row_id]] if row_id in self.copies else []))
            for row_id, one in zip(ids, places, strict=True)
        ]


def backend(node_of: dict[int, int], **options: Any) -> Backend:
    return cast(Backend, Places(node_of, **options))


@pytest.mark.parametrize("n_nodes", [1, 3])
def test_rows_are_cut_as_those_of_a_call(n_nodes: int) -> None:
    role = df.place(Model, "dp3 tp2", on=range(6), name="many")
    call = df.call(role.read, "x, i", rows=48, interface=df.Interface.INFERENCE)
    for seed in range(40):
        chance = np.random.default_rng(seed)
        group = int(chance.integers(1, 4))
        work = random_work(chance, group, 6, is_ragged=bool(chance.integers(2)))
        nodes = backend({worker: int(chance.integers(n_nodes)) for worker in range(10)})
        plan = plan_of_move(nodes, role, group, work.ids, work.columns)
        parts = parts_of_move(plan, role, work.ids, work.columns)
        expected = {
            worker: (one.ids, one.columns)
            for worker, one in parts_of(work, call, group).items()
            if one.part is not None and one.part.n_real
        }
        assert {worker: (one.ids, one.columns) for worker, one in parts.items()} == expected
        assert plan.n_bytes >= plan.least_bytes
        assert plan.n_bytes == 0 or n_nodes > 1


def test_between_nodes_the_plan_has_bytes_and_pulls() -> None:
    role = df.place(Model, on=[2], name="far")
    work = work_of([4, 5, 6], [10, 20, 30], [0, 1, 2])
    columns = {"x": work.columns["x"]}
    plan = plan_of_move(backend({0: 0, 1: 0, 2: 1}), role, 1, work.ids, columns)
    assert (plan.n_bytes, plan.least_bytes) == (120, 120)
    assert [(one.source, one.target, one.ids.tolist()) for one in plan.pulls] == [(0, 2, [4]), (1, 2, [5])]
    # What a worker of the node keeps already is not sent again.
    plan = plan_of_move(backend({0: 0, 1: 0, 2: 1}, copies={4: 2, 5: 2}), role, 1, work.ids, columns)
    assert plan.n_bytes == 0
    assert plan.explain().splitlines()[1] == "between nodes: 0 bytes in 0 pulls; least possible 0"


def test_one_process_is_one_worker_that_has_all() -> None:
    role = df.place(Model, "dp2", on=[2, 3], name="pair")
    one = backend({0: 0, 2: 0, 3: 0}, cuts_rows=False)
    one.holders = lambda column, ids, places: [(0, 2, 3)] * len(ids)  # type: ignore[method-assign]
    plan = plan_of_move(one, role, 1, [4, 5], {"x": [np.float64(1).item(), "text"]})
    assert [some.tolist() for some in plan.slices] == [[4, 5]]
    assert (plan.pulls, plan.reads) == ((), ())
