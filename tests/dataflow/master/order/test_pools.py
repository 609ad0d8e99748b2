"""Pools of equal replicas: which one gets a call, and what happens when one dies, joins again, or leaves for good."""

from __future__ import annotations

import random

from random_plans import random_plan, with_pools
from recovering_flow import RecoveringWorld
from seeds import noted
from simulated_flow import make_columns
from test_order_recovery import check

from softs_fast.dataflow.declare.plan import FlowPlan, FunctionPlan, PartitionPlan
from softs_fast.dataflow.master.master import Master
from softs_fast.dataflow.master.order.steps import CallState, Kind, Step
from softs_fast.dataflow.master.rows.table import Taken

POOL = (1, 2, 3)


def plan_of_pool(*others: FunctionPlan) -> FlowPlan:
    generate = FunctionPlan("gen", POOL, ("x",), ("y",), 1, 1, is_pool=True)
    train = FunctionPlan("train", (0,), ("x", "y"), (), 8, 8, is_strict=True)
    return FlowPlan((*others, generate, train), {"train": PartitionPlan("train", 8, 8, 0)}, {"train": ("x",)})


class Pooled:
    """A master with a pool of three workers, of which each call has one row, and a worker that trains with eight."""

    def __init__(self, *others: FunctionPlan) -> None:
        self.master = Master(plan_of_pool(*others), self.steps, (0, *POOL))
        for _ in range(8):
            self.master.admit("train", n_bytes=1)
        #: Orders that have no report, by worker; and answers.
        self.orders: dict[int, list[Step]] = {worker: [] for worker in (0, *POOL)}
        self.answers: list[CallState] = []
        self.turn()

    def steps(self, function: FunctionPlan, taken: Taken) -> tuple[Step, ...]:
        main = Step(Kind.MAIN, frozenset(function.workers), function.name)
        return (
            (main,) if function.name != "train" else (main, Step(Kind.POST, frozenset((0, *POOL)), "publish"))
        )

    def turn(self) -> None:
        """Take what the master says."""
        for output in self.master.advance(0.0):
            if isinstance(output, CallState):
                self.answers.append(output)
            elif isinstance(output[1], Step):
                self.orders[output[0]].append(output[1])

    def rows(self) -> dict[int, list[int]]:
        """Return the rows that each replica has got and not made."""
        return {
            worker: [
                row
                for one in self.orders[worker]
                if one.work == "gen" and (state := self.master.calls.get(one.call)) and state.taken
                for row in state.taken.ids
            ]
            for worker in POOL
        }

    def end(self, worker: int) -> None:
        """A worker reports the first of its orders."""
        order = self.orders[worker].pop(0)
        if order.kind is Kind.MAIN and worker:
            make_columns(self.master, order.call, worker)
        self.master.order.report(worker, order.ticket)
        self.turn()

    def lose(self, worker: int) -> None:
        self.orders[worker].clear()
        self.master.lose(worker, f"worker {worker} died")
        self.turn()

    def join(self, worker: int) -> None:
        self.master.order.join(worker)
        self.master.order.restored(worker)
        self.turn()

    def made(self) -> list[str]:
        return [one.name for one in self.answers if one.reason is None]


def test_a_call_goes_to_the_replica_that_is_free() -> None:
    flow = Pooled()
    assert flow.rows() == {1: [0], 2: [1], 3: [2]}
    for row in (3, 4, 5):  # worker 1 is slow: what comes does not wait behind it
        flow.end(2)
        assert flow.rows() == {1: [0], 2: [row], 3: [2]}


def test_a_replica_with_calls_of_another_function_is_free_for_this_one() -> None:
    flow = Pooled(FunctionPlan("score", (3,), ("x",), ("z",), 1, 1))
    assert [one.work for one in flow.orders[3]] == ["score", "score"]  # as many as a worker may have
    calls = {
        min(one.mains): one.taken.ids for one in flow.master.calls.values() if one.taken and one.name == "gen"
    }
    assert calls == {1: (0,), 2: (1,), 3: (2,)}


def test_calls_of_a_replica_that_dies_go_to_others_and_count_once() -> None:
    flow = Pooled()
    flow.end(2)
    flow.lose(1)
    assert flow.rows() == {1: [], 2: [3], 3: [2]}
    flow.master.order.report(1, 1)  # what it had sent is late
    flow.end(3)
    assert flow.rows() == {1: [], 2: [3], 3: [0]}  # its row comes before younger ones
    while flow.orders[2] or flow.orders[3]:
        flow.end(2 if flow.orders[2] else 3)
    assert flow.made() == ["gen"] * 8
    assert [one.workers for one in flow.orders[0]] == [{0}, {0, 2, 3}]


def test_a_replica_that_joins_again_gets_calls_and_weights() -> None:
    flow = Pooled()
    flow.lose(1)
    assert (flow.master.order.away, flow.master.awaited) == ({1}, set())
    flow.join(1)
    assert flow.rows() == {1: [0], 2: [1], 3: [2]}
    while len(flow.made()) < 8:
        flow.end(next(worker for worker in POOL if flow.orders[worker]))
    assert flow.orders[0][1].workers == {0, 1, 2, 3}


def test_the_last_replica_is_awaited() -> None:
    flow = Pooled()
    for worker in (1, 2):
        flow.lose(worker)
        assert not flow.master.awaited
    flow.lose(3)
    assert flow.master.awaited == {1, 2, 3}
    assert not flow.orders[0]
    flow.join(2)
    assert not flow.master.awaited
    assert flow.rows() == {1: [], 2: [0], 3: []}


def test_a_call_by_hand_has_a_replica_too() -> None:
    flow = Pooled()
    flow.lose(1)
    flow.end(2)
    flow.end(2)
    ids = flow.master.admit("train", n_bytes=1) if flow.master.rows.room("train") else (5,)
    number = flow.master.post("gen", ids, 0.0)
    state = flow.master.calls[number]
    assert len(state.mains) == 1
    assert state.mains <= {2, 3}


def world_of(seed: int) -> RecoveringWorld:
    choice = random.Random(seed)
    plan = with_pools(random_plan(choice))
    n_groups = plan.partitions["train"].groups_per_step * choice.randint(1, 4) + choice.choice([0, 0, 1])
    deaths = tuple(choice.randint(1, 400) for _ in range(choice.randint(1, 12)))
    drops, leaves = choice.choice([0.0, 0.0, 0.1]), choice.choice([0.0, 0.5, 1.0])
    world = RecoveringWorld(seed, plan, n_groups, deaths=deaths, drops=drops, leaves=leaves)
    for _ in range(choice.choice([0, 0, 2])):
        world.later(choice.random() * 10, world.post)
    return world


def test_histories_with_replicas_that_die_join_again_and_leave() -> None:
    n_lost = n_gone = 0
    for seed in range(60):
        with noted(seed):
            world = world_of(seed)
            world.run()
            check(world)
        n_lost += world.n_lost
        n_gone += len(world.gone)
    assert n_lost > 60
    assert n_gone > 10
