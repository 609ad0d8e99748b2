"""Thousands of flows of which workers die and join again: nothing is stuck, and each row is trained as often as it should."""

from __future__ import annotations

import random

import pytest
from random_plans import random_plan
from recovering_flow import RecoveringWorld
from seeds import noted


def world_of(seed: int) -> RecoveringWorld:
    choice = random.Random(seed)
    plan = random_plan(choice)
    per_step = plan.partitions["train"].groups_per_step
    n_groups = per_step * choice.randint(1, 4) + choice.choice([0, 0, 1])
    deaths = tuple(choice.randint(1, 400) for _ in range(choice.randint(1, 12)))
    world = RecoveringWorld(seed, plan, n_groups, deaths=deaths, drops=choice.choice([0.0, 0.0, 0.1]))
    for _ in range(choice.choice([0, 0, 2])):
        world.later(choice.random() * 10, world.post)
    return world


def check(world: RecoveringWorld) -> None:
    """What holds for every history."""
    order, rows = world.master.order, world.master.rows
    world.check_nesting()
    assert not order.tickets, f"stuck: {order.tickets}"
    assert not order.ready
    assert not order.parked
    assert order.away == world.gone
    assert not world.master.awaited
    assert not world.master.calls
    assert not world.restores
    assert set(world.answers) == set(world.calls)
    assert set(world.answers.values()) <= {1}
    for worker in world.workers.values():
        assert worker.entered == sorted(set(worker.entered)), "tickets do not grow"
    failed = set(world.failed) - world.master.repeated
    assert {world.calls[number][0] for number in failed} <= {"hook", "restore"}
    assert max(world.ages, default=0) <= world.plan.partitions["train"].age_bound
    assert not world.left
    assert (len(rows), rows.n_bytes) == (0, 0)
    check_trained(world)


def check_trained(world: RecoveringWorld) -> None:
    """Each training function has used each row as often as it should, in the order of the source within the window.

    But for rows that it goes without, because another one has used what was lost.
    """
    n_rows = world.master.rows.counts["train"].admitted * world.plan.group
    all_live = [row for row in range(0, n_rows, world.plan.group) if row not in world.dropped]
    n_left_out = sum(len(rows) for rows in world.left_out.values()) * world.plan.group
    assert world.master.rows.n_left_out == n_left_out
    for function in world.plan.functions:
        left_out = world.left_out[function.name]
        live = [row for row in all_live if row not in left_out]
        if not function.is_strict:
            assert all(world.uses[function.name, row] for row in live)
            continue
        assert all(world.trained[function.name].count(row) < function.reuse for row in left_out)
        world.trained[function.name] = [row for row in world.trained[function.name] if row not in left_out]
        used = world.trained[function.name]
        skipped = [row for row in live if row not in used]
        assert not skipped or (function.drops_rest and len(skipped) < function.groups)
        assert all(used.count(row) == function.reuse for row in live if row not in skipped)
        assert set(used) <= set(live)
        if function.reuse == 1:
            for place, row in enumerate(used):
                overtakes = [one for one in used[place + 1 :] if one < row]
                # Groups that were dropped meanwhile count, too: the window is one of all that were admitted.
                assert all((row - one) // world.plan.group < world.plan.window for one in overtakes)


def check_histories(first: int, last: int) -> tuple[int, int]:
    """Return how many workers died, and how many rows functions went without."""
    n_lost = n_left_out = 0
    for seed in range(first, last):
        with noted(seed):
            world = world_of(seed)
            world.run()
            check(world)
            n_lost += world.n_lost
            n_left_out += world.master.rows.n_left_out
    return n_lost, n_left_out


def test_histories_with_workers_that_join_again() -> None:
    n_lost, n_left_out = check_histories(0, 60)
    assert n_lost > 60
    assert n_left_out


def test_a_worker_that_joins_again_dies_at_every_event() -> None:
    seed = 40
    plan = random_plan(random.Random(seed))
    n_groups = plan.partitions["train"].groups_per_step
    calm = RecoveringWorld(seed, plan, n_groups)
    calm.run()
    assert calm.n_events > 100
    for event in range(1, calm.n_events + 1):
        world = RecoveringWorld(seed, plan, n_groups, deaths=(event,))
        world.run()
        check(world)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 2_500))
def test_ten_thousand_histories_with_workers_that_join_again(first: int) -> None:
    assert check_histories(first, first + 2_500)[0] > 2_500
