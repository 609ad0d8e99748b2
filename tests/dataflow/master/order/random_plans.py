"""Random flows that can run: functions, columns, rows, roles."""

from __future__ import annotations

import random
from dataclasses import replace

from softs_fast.dataflow.declare.calls import Interface, MFCDef
from softs_fast.dataflow.declare.capacity import plan_of
from softs_fast.dataflow.declare.graph import graph_of
from softs_fast.dataflow.declare.plan import FlowPlan
from softs_fast.dataflow.declare.roles import Role, place
from softs_fast.errors import ConfigError


class Model(Role):
    """Offers one function."""

    def run(self, rows: object) -> object:
        return rows


def random_plan(choice: random.Random) -> FlowPlan:
    """Return the plan of a flow of 2 to 7 functions on 2 to 10 workers, with mixed numbers of rows."""
    while True:
        try:
            return _attempt(choice)
        except ConfigError:
            continue


def with_pools(plan: FlowPlan) -> FlowPlan:
    """Return a plan of which each role on several workers that does not train is a pool."""
    functions = [replace(one, is_pool=not one.is_strict and len(one.workers) > 1) for one in plan.functions]
    return replace(plan, functions=tuple(functions))


def _attempt(choice: random.Random) -> FlowPlan:
    n_workers, n_functions = choice.randint(2, 10), choice.randint(2, 7)
    group, base = choice.choice([1, 1, 2, 4]), choice.choice([1, 2, 3, 6])
    calls = []
    read: set[str] = set()
    made: list[str] = []
    for i in range(n_functions):
        is_sink = i == n_functions - 1 or (i > 0 and choice.random() < 0.2)
        inputs = {f"c{i - 1}"} & set(made) or {"source"}
        inputs |= {name for name in made if choice.random() < 0.3}
        if is_sink and i == n_functions - 1:
            inputs |= set(made) - read
        if choice.random() < 0.2:
            inputs.add("source")
        read |= inputs
        size = choice.randint(1, min(4, n_workers))
        role = place(Model, f"dp{size}", on=sorted(choice.sample(range(n_workers), size)), name=f"r{i}")
        rows = group * base * choice.choice([1, 1, 2, 4])
        least = choice.choice([None, None, group])
        reuse = choice.choice([1, 1, 2]) if is_sink and least is None else 1
        if not is_sink:
            made.append(f"c{i}")
        calls.append(
            MFCDef(
                f"f{i}",
                role,
                Interface.TRAIN_STEP if is_sink else Interface.INFERENCE,
                "run",
                tuple(sorted(inputs)),
                () if is_sink else (f"c{i}",),
                n_seqs=rows,
                at_least=least,
                reuse=reuse,
                uneven=choice.choice(["short", "drop"]) if is_sink else "short",
            )
            if is_sink or choice.random() < 0.9
            else MFCDef(
                f"f{i}", None, Interface.INFERENCE, print, tuple(sorted(inputs)), (f"c{i}",), n_seqs=rows
            )
        )
    ahead = choice.randint(0, 2)
    window = choice.choice([1, 1, 1, 2, 4]) if all(one.reuse == 1 for one in calls) else 1
    order, source = graph_of(calls, {"train": ["source"]})
    return plan_of(order, source, group=group, max_age=ahead + 4, ahead=ahead, window=window)
