"""Thousands of flows with stores of few bytes: none holds more, and none is stuck if a step has room."""

from __future__ import annotations

import random

import pytest
from random_plans import random_plan
from seeds import noted
from stored_flow import StoredWorld, StoreFull
from test_order_simulation import check

from softs_fast.dataflow.order.sequencer import NeverFits


def world_of(seed: int, share: float | None = None, growth: float = 1.0) -> StoredWorld:
    choice = random.Random(seed)
    plan = random_plan(choice)
    n_groups = plan.partitions["train"].groups_per_step * choice.randint(2, 6) + choice.choice([0, 0, 1])
    at_random = choice.choice([1.0, 1.0, 1.3, 2.0, 4.0])
    world = StoredWorld(
        seed,
        plan,
        n_groups,
        share=at_random if share is None else share,
        n_nodes=choice.choice([1, 1, 2, 3]),
        drops=choice.choice([0.0, 0.0, 0.1]),
        growth=growth,
    )
    for _ in range(choice.choice([0, 0, 2])):
        world.later(choice.random() * 10, world.post)
    return world


def check_stores(world: StoredWorld) -> None:
    check(world)
    assert not any(world.ledger.n_bytes.values())
    assert not any(world.room.reserved.values())
    assert not len(world.ledger)
    assert not any(world.stores.values())


def check_histories(first: int, last: int) -> None:
    for seed in range(first, last):
        with noted(seed):
            world = world_of(seed)
            world.run()
            check_stores(world)


@pytest.mark.parametrize("first", range(0, 180, 60))
def test_histories_with_stores(first: int) -> None:
    check_histories(first, first + 60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(0, 10_000, 2_500))
def test_ten_thousand_histories_with_stores(first: int) -> None:
    check_histories(first, first + 2_500)


def test_stores_that_hold_no_step_end_the_flow_or_suffice() -> None:
    n_refused = 0
    for seed in range(100):
        world = world_of(seed, share=0.6)
        try:
            world.run()
        except NeverFits:
            n_refused += 1
            assert not world.master.order.tickets
        except StoreFull:
            # The first calls of a function have no room for what was not expected.
            n_refused += 1
        else:
            if world.left:  # the source has no room
                n_refused += 1
                assert world.master.is_full
            else:
                check_stores(world)
    assert 5 < n_refused < 100


def test_stores_are_used_beyond_a_step() -> None:
    """With room for four steps generation does not wait for the step before."""
    worlds = [world_of(seed, share=4.0) for seed in range(40)]
    for world in worlds:
        world.run()
    beyond = [
        world
        for world in worlds
        if any(world.most_held[worker] > world.least_limit for worker in world.workers if worker >= 0)
    ]
    assert len(beyond) > 5
