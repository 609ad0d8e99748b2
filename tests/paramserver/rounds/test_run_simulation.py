"""Thousands of histories of a run in virtual time."""

from __future__ import annotations

import random

import pytest
from simulated_run import Worker, World

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.options import RunOptions

#: By then every fault is over.
FAULTS_S = 60.0
#: By then a run must be done.
END_S = 3000.0


def options_of(seed: int) -> RunOptions:
    pick = random.Random(seed)
    world_size = pick.randint(1, 5)
    mode = ("bsp", "bsp", "ssp", "async")[seed % 4]
    return RunOptions(
        world_size=world_size,
        rounds=pick.randint(5, 25),
        mode=mode,  # type: ignore[arg-type]
        quorum=pick.choice([None, None, 1, world_size]),
        round_samples=pick.choice([None, None, None, 7]),
        round_timeout_s=pick.choice([None, None, 4.0]),
        max_lead=pick.randint(0, 3),
        pushes_per_step=pick.randint(1, world_size + 1),
        max_age=pick.randint(0, 6),
        dataset_size=pick.choice([0, 23, 40]),
        epochs=pick.choice([None, None, 1, 2]),
        save_every=pick.choice([1, 1, 3]),
        max_workers=world_size + pick.randint(0, 2),
    )


def fault(world: World) -> None:
    """Do something to a process, or have the owner do something."""
    pick = world.random
    worker = pick.choice(world.workers)
    kind = pick.random()
    world.is_calm = False
    if kind < 0.25:
        worker.is_alive = False
        new = Worker(world, worker.line)
        new.before = worker.id if pick.random() < 0.5 else None
        world.workers[world.workers.index(worker)] = new
        world.later(world.delay(30.0), new.start)
    elif kind < 0.4:
        worker.stopped_until_s = world.now_s + world.delay(40.0)
    elif kind < 0.5:
        worker.hung_until_s = world.now_s + world.delay(200.0)
    elif kind < 0.65:
        world.crash_server()
    elif kind < 0.75:
        world.tell(events.Pause("the owner needs the machine"))
        world.later(world.delay(20.0), lambda: world.tell(events.Resume()))
    elif kind < 0.85 and worker.id is not None:
        world.tell(events.Rest(worker.id))
    elif kind < 0.95 and worker.id is not None:
        world.tell(events.Leave(worker.id))
    else:
        world.tell(events.Start())


def simulate(seed: int) -> World:
    world = World(seed, options_of(seed))
    pick = world.random
    if seed % 5:
        world.loss_rate, world.double_rate = pick.random() * 0.3, pick.random() * 0.3
        world.crash_rate = pick.choice([0.0, 0.001, 0.005])
        for _ in range(pick.randint(0, 10)):
            world.later(pick.random() * FAULTS_S, lambda: fault(world))
    world.start_server()
    world.workers = [Worker(world, line) for line in range(world.options.world_size)]
    for worker in world.workers:
        world.later(world.delay(5.0), worker.start)
    world.run_until(FAULTS_S)
    if world.ended is None:
        world.loss_rate = world.double_rate = world.crash_rate = 0.0
        if world.run is not None:
            world.tell(events.Resume())
        world.run_until(END_S)
    return world


def check(seed: int) -> World:
    world = simulate(seed)
    status = None if world.run is None else world.run.status(world.now_s)
    assert world.ended is not None, f"seed {seed}: the run stands still: {status}"
    assert not world.ended[1]
    assert world.model.weights == world.committed[world.run.version]  # type: ignore[union-attr]
    world.check_end()
    return world


def test_histories() -> None:
    for seed in range(80):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(100))
def test_many_histories(group: int) -> None:
    for seed in range(1000 + group * 100, 1100 + group * 100):
        check(seed)


def test_the_histories_have_faults() -> None:
    """A simulation without refused pushes and crashes would prove little."""
    worlds = [check(seed) for seed in range(20)]
    assert sum(one.n_refused for one in worlds) > 25
    assert sum(one.n_crashes for one in worlds) > 5


def test_without_faults_each_push_counts() -> None:
    """Strict rounds: no push is refused, and each round has one of every worker."""
    for seed in range(20):
        world = World(seed, RunOptions(world_size=3, rounds=10, quorum=3, dataset_size=50))
        world.start_server()
        world.workers = [Worker(world, line) for line in range(3)]
        for worker in world.workers:
            world.later(world.delay(5.0), worker.start)
        world.run_until(END_S)
        assert world.ended == ("all 10 rounds are done", False)
        assert world.n_refused == 0
        assert sum(world.model.applied.values()) == 30
        world.check_end()


def test_bounded_lead_reads_what_it_must() -> None:
    for seed in range(40):
        world = World(seed, RunOptions(world_size=3, rounds=40, mode="ssp", max_lead=seed % 3))
        served = world.check_served

        def check_served(worker: Worker, version: events.Version, served=served, world=world) -> None:  # type: ignore[no-untyped-def]
            served(worker, version)
            world.check_lead(worker)

        world.check_served = check_served  # type: ignore[method-assign]
        world.start_server()
        world.workers = [Worker(world, line) for line in range(3)]
        for worker in world.workers:
            worker.start()
        world.run_until(END_S)
        assert world.ended is not None
