"""Thousands of flows with mixed rows, stragglers and deaths: none is stuck, and each call has one answer."""

from __future__ import annotations

import random

import pytest
from random_plans import random_plan
from seeds import noted
from simulated_flow import World

from softs_fast.dataflow.master.order.steps import Kind


def world_of(seed: int) -> World:
    choice = random.Random(seed)
    plan = random_plan(choice)
    per_step = plan.partitions["train"].groups_per_step
    n_groups = per_step * choice.randint(1, 4) + choice.choice([0, 0, 1])
    kind = choice.choice(["calm", "calm", "drops", "deaths", "deaths", "failures"])
    deaths: tuple[int, ...] = ()
    if kind == "deaths":
        workers = {worker for one in plan.functions for worker in one.workers}
        deaths = tuple(choice.randint(1, 300) for _ in range(max(1, len(workers) // 3)))
    world = World(
        seed,
        plan,
        n_groups,
        deaths=deaths,
        failures=0.02 if kind == "failures" else 0.0,
        drops=0.1 if kind == "drops" else 0.0,
    )
    for _ in range(choice.choice([0, 0, 2])):
        world.later(choice.random() * 10, world.post)
    return world


def check(world: World) -> None:
    """What holds for every history."""
    order = world.master.order
    assert not order.tickets, f"stuck: {order.tickets}"
    assert not order.ready
    assert not order.parked
    assert not world.master.calls
    assert set(world.answers) == set(world.calls)
    assert set(world.answers.values()) <= {1}
    for worker in world.workers.values():
        assert worker.entered == sorted(set(worker.entered)), "tickets do not grow"
        assert not worker.is_alive or (worker.executor.inside is None and not worker.executor.waiting)
    check_order(world)
    world.check_nesting()
    check_answers(world)
    bound = world.plan.partitions["train"].age_bound
    assert max(world.ages, default=0) <= bound
    if not world.failed and not any(not worker.is_alive for worker in world.workers.values()):
        check_complete(world)


def check_order(world: World) -> None:
    """The order of tickets is one of those that are allowed."""
    for epoch in world.epochs:
        begun = {order.call for order in epoch if order.kind is Kind.MAIN}
        others = [order.ticket for order in epoch if order.kind > Kind.MOVE and order.call in begun]
        moves = [order.ticket for order in epoch if order.kind is Kind.MOVE]
        assert not others or not moves or max(moves) < min(others)
    steps: dict[int, list[Kind]] = {}
    for ticket in sorted(world.tickets):
        steps.setdefault(world.tickets[ticket].call, []).append(world.tickets[ticket].kind)
    assert all(kinds == sorted(kinds) for kinds in steps.values())


def check_answers(world: World) -> None:
    """A call is done exactly if all its steps have ended with all their participants, by a full search."""
    tickets: dict[int, list[int]] = {}
    for ticket, order in world.tickets.items():
        tickets.setdefault(order.call, []).append(ticket)
    for call in world.calls:
        ended = [world.finished[ticket] == 1 for ticket in tickets.get(call, [])]
        if call not in world.failed:
            assert ended
            assert all(ended)


def check_complete(world: World) -> None:
    """Without deaths all functions have used all rows as often as they should."""
    assert not world.left
    assert len(world.master.rows) == 0
    assert world.master.rows.n_bytes == 0
    n_rows = world.master.rows.counts["train"].admitted * world.plan.group
    for function in world.plan.functions:
        used = [world.uses[function.name, row] for row in range(n_rows) if row not in world.dropped]
        assert set(used) <= {function.reuse, 0}
        skipped = used.count(0)
        assert skipped == 0 or (function.drops_rest and skipped < function.groups * world.plan.group)


def check_histories(first: int, last: int) -> None:
    for seed in range(first, last):
        with noted(seed):
            world = world_of(seed)
            world.run()
            check(world)


def test_histories() -> None:
    check_histories(0, 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 2_500))
def test_ten_thousand_histories(first: int) -> None:
    check_histories(first, first + 2_500)


def test_a_worker_dies_at_every_event() -> None:
    seed = 40
    plan = random_plan(random.Random(seed))
    assert len(plan.functions) == 6
    n_groups = plan.partitions["train"].groups_per_step
    calm = World(seed, plan, n_groups)
    calm.run()
    assert calm.n_events > 100
    for event in range(1, calm.n_events + 1):
        world = World(seed, plan, n_groups, deaths=(event,))
        world.run()
        check(world)
