"""Thousands of histories of a job: what must hold does at each moment, and in the end all train together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seeds import noted
from simulated_invariants import EARLIER_BOOT
from simulated_job import Process, World

from softs_fast.coordination.job import events
from softs_fast.coordination.job.messages import WorkerState
from softs_fast.coordination.job.options import JobOptions

SIZES = [
    dict(min_workers=3, max_workers=3),
    dict(min_workers=2, max_workers=4),
    dict(min_workers=1, max_workers=5),
    dict(min_workers=2, max_workers=6, block_size=2),
    dict(min_workers=2, max_workers=6, multiple_of=2),
    dict(min_workers=4, max_workers=4, block_size=2),
]


def options_of(seed: int) -> JobOptions:
    return JobOptions(
        "job",
        **SIZES[seed % len(SIZES)],
        form_timeout_s=2.0,
        join_s=0.3,
        away_s=1.0,
        reconnect_timeout_s=1.0,
        stalled_after_s=5.0,
        lost_after_s=0.5,
    )


def start_earlier(world: World, number: int, incarnation: int, *, wants: bool) -> None:
    """Start a process of an earlier training, of which epochs and steps have numbers of their own."""
    epoch = world.random.choice([1, 50, (1 << 53) - 1])
    state = WorkerState(EARLIER_BOOT, epoch, world.random.choice([3, 300]))
    process = Process(world, f"w{number}", incarnation, number if wants else None, state, ("earlier", state))
    world.start(process)


def start(world: World, number: int, incarnation: int, *, wants: bool) -> None:
    """Start a process, perhaps from the last complete checkpoint."""
    step, weights = 0, None
    if world.saved and world.random.random() < 0.5:
        step, weights = max(world.saved.values(), key=lambda saved: saved[0])
    world.start(
        Process(
            world, f"w{number}", incarnation, number if wants else None, WorkerState(committed=step), weights
        )
    )


def harm(world: World, numbers: list[int], *, wants: bool, incarnations: dict[int, int]) -> None:
    """Do one bad thing."""
    number = world.random.choice(numbers)
    process = world.processes[f"w{number}"]
    what = world.random.choice(
        [
            "kill",
            "kill",
            "stop",
            "cut",
            "cut",
            "crash",
            "lose",
            "older",
            "drain",
            "evict",
            "leave",
            "double",
            "slow",
            "slow",
            "defect",
            "earlier",
        ]
    )
    if what in ("kill", "drain", "evict", "leave", "double", "earlier"):
        incarnations[number] = world.random.getrandbits(53)
    incarnation = incarnations[number]

    def restart() -> None:
        if world.processes[process.id] is process or not world.processes[process.id].is_alive:
            if process.is_alive:
                process.kill()
            (start_earlier if what == "earlier" else start)(world, number, incarnation, wants=wants)

    if what in ("kill", "earlier"):
        process.kill()
        world.later(world.delay(1.0), restart)
    elif what == "slow":
        process.end_s = 8.0
    elif what == "defect":
        # The others apply the step meanwhile.
        for one in world.processes.values():
            one.end_s = 8.0
        process.fails_to_apply, process.end_s = True, 0.03
    elif what == "stop":
        process.stop()
        world.later(world.delay(2.0), process.resume)
        if process.link is not None and world.random.random() < 0.5:
            world.later(world.delay(2.0), lambda: world.cut(link) if (link := process.link) else None)
    elif what == "cut" and process.link is not None:
        world.cut(process.link)
    elif what in ("crash", "lose", "older") and world.job is not None:
        world.has_file = what != "lose"
        world.crash_coordinator(n_lost=min(len(world.file), 2) if what == "older" else 0)
        world.later(world.delay(0.5), lambda: world.start_coordinator() if world.job is None else None)
    elif what in ("drain", "evict"):
        known = None if world.job is None else world.job._state.seats.by_id.get(process.id)
        if known is not None and known.seat is not None:
            seat = known.seat
            world.admin(events.Drain(seat, "test") if what == "drain" else events.Evict(seat, "test"))
        world.later(1.0 + world.delay(1.0), restart)
    elif what == "leave":
        process.run(lambda: process.act(process.machine.leave("test")))
        world.later(1.0 + world.delay(1.0), restart)
    elif what == "double":
        # The launcher starts a worker again, and the one before still runs.
        world.start(Process(world, process.id, incarnation, process.wanted))


def run(seed: int, options: JobOptions) -> World:
    world = World(seed, options)
    wants = world.random.random() < 0.5
    numbers = list(range(options.n_seats + world.random.choice([0, 0, 1])))
    if wants:
        numbers = list(range(options.n_seats))
    incarnations = dict.fromkeys(numbers, 1)
    world.start_coordinator()
    for number in numbers:
        world.later(world.delay(1.0), lambda number=number: start(world, number, 1, wants=wants))
    world.run_until(2.0)
    world.crash_at_persist = world.random.choice([0.0, 0.3])
    for _ in range(world.random.randrange(12)):
        harm(world, numbers, wants=wants, incarnations=incarnations)
        world.run_until(world.now_s + world.delay(1.5))
        if world.job is None:
            world.later(world.delay(0.3), lambda: world.start_coordinator() if world.job is None else None)
    # From here on nothing bad happens any more, and each number has a worker that runs.
    world.crash_at_persist = world.differ_in = 0.0
    for process in world.started.values():
        process.fails_to_apply = False
    world.run_until(world.now_s + 3.0)
    if world.job is None:
        world.start_coordinator()
    for number in numbers:
        process = world.processes[f"w{number}"]
        process.end_s = 0.03
        if process.is_over or not process.is_alive:
            # Those before it may still leave, and would keep a later one out until then.
            for one in world.started.values():
                if one.id == process.id:
                    one.kill()
            incarnations[number] = world.random.getrandbits(53)
            start(world, number, incarnations[number], wants=wants)
    return world


def is_complete(world: World) -> bool:
    """Return whether the job has all its members, or has ended."""
    assert world.job is not None
    status = world.job.status(world.now_s)
    return status.phase == "ended" or (status.phase == "open" and status.size == world.options.n_seats)


def check_end(world: World) -> None:
    """All workers train together in the end; 60 seconds are an eternity."""
    assert world.job is not None
    end_s = world.now_s + 60.0
    while not is_complete(world):
        assert world.now_s < end_s, world.job.status(world.now_s)
        world.run_until(world.now_s + 0.5)
    world.repeat()
    if world.job.status(world.now_s).phase == "ended":
        return
    before = world.invariants.n_steps
    world.run_until(world.now_s + 1.5)
    assert world.invariants.n_steps > before, "no steps"
    state = world.job._state
    assert len(state.seats.by_conn) <= world.options.n_seats + world.options.max_spares
    assert len(state.seats.by_id) <= world.options.n_seats + world.options.max_spares


def check_histories(first: int, last: int) -> None:
    n_followers = 0
    for seed in range(first, last):
        with noted(seed):
            world = run(seed, options_of(seed))
            check_end(world)
            n_followers += sum(len(table.followers) for table in world.opened)
    assert n_followers > (last - first) // 10, "workers that join copy while the members go on"


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.full) for first in range(100, 600, 100))]
)
def test_histories(first: int) -> None:
    check_histories(first, first + 100)


def test_shortest_waits_that_options_permit() -> None:
    waits = dict(
        blink_s=0, form_timeout_s=0.05, join_s=0, settle_s=0, reconnect_timeout_s=0, stalled_after_s=0.05
    )
    for seed in range(24):
        with noted(seed):
            check_end(run(seed, replace(options_of(seed), **waits)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, 10_000, 2_500))
def test_ten_thousand_histories(first: int) -> None:
    check_histories(first, first + 2_500)
