"""Threads of which one runs at a time, each with random numbers and modes of its own."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from waiting import WATCHDOG_S

from softs_fast.dataflow.lockstep.threads import LockstepThreads
from softs_fast.errors import FlowError

Make = Callable[[int], LockstepThreads]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[LockstepThreads] = []

    def one(n_workers: int) -> LockstepThreads:
        made.append(LockstepThreads(range(n_workers)))
        return made[-1]

    yield one
    for threads in made:
        threads.close()
        threads.close()


def values(threads: LockstepThreads, function: Callable[[int], Any], n: int) -> list[Any]:
    ended = threads.run({worker: lambda worker=worker: function(worker) for worker in range(n)})
    for one in ended.values():
        if one.error is not None:
            raise one.error
    return [ended[worker].value for worker in range(n)]


def drawn() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def seeded(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def test_one_runs_at_a_time_and_all_in_one_order(make: Make) -> None:
    threads = make(3)
    trace: list[tuple[int, int]] = []
    inside: list[int] = []

    def part(worker: int) -> None:
        for turn in range(3):
            inside.append(worker)
            assert inside == [worker]
            trace.append((worker, turn))
            inside.clear()
            for other in {0, 1, 2} - {worker}:
                threads.wake(other)
            if turn < 2 and worker < 2:
                threads.wait(worker, "its turn")

    values(threads, part, 3)
    first = list(trace)
    trace.clear()
    values(threads, part, 3)
    assert trace == first
    assert [worker for worker, _ in first] == [0, 1, 2, 2, 2, 0, 1, 0, 1]


def test_each_worker_has_the_random_numbers_that_it_would_have_alone(make: Make) -> None:
    alone = []
    for worker in range(3):
        seeded(worker)
        alone.append([drawn() for _ in range(4)])
    threads = make(3)
    seeded(9)
    due = drawn()
    seeded(9)
    values(threads, seeded, 3)

    def part(worker: int) -> list[Any]:
        found = [drawn()]
        for other in range(worker):
            threads.wake(other)
        if worker < 2:
            threads.wait(worker, "the next one")
        return [*found, drawn()]

    both = [values(threads, part, 3) for _ in range(2)]
    assert [both[0][worker] + both[1][worker] for worker in range(3)] == alone
    assert drawn() == due


def test_workers_without_seeds_differ_and_so_do_two_starts(make: Make) -> None:
    def one(worker: int) -> tuple[float, float, float]:
        return drawn()

    found = values(make(2), one, 2) + values(make(2), one, 2)
    for kind in zip(*found, strict=True):
        assert len(set(kind)) == 4


def test_what_belongs_to_a_thread_stays_with_its_worker(make: Make) -> None:
    threads = make(2)
    values(threads, lambda worker: torch.set_grad_enabled(worker == 0) and None, 2)
    assert values(threads, lambda worker: torch.is_grad_enabled(), 2) == [True, False]
    assert torch.is_grad_enabled()
    names = values(threads, lambda worker: threading.current_thread().name, 2)
    assert names == ["softs-flow-0", "softs-flow-1"]


def test_all_that_wait_in_vain_are_told_what_the_others_do(make: Make) -> None:
    threads = make(3)

    def part(worker: int) -> int:
        if worker == 1:
            return 7
        threads.wait(worker, f"sum {worker}")
        return worker

    ended = threads.run({worker: lambda worker=worker: part(worker) for worker in range(3)})
    assert ended[1].value == 7
    assert [ended[worker].was_stuck for worker in range(3)] == [True, False, True]
    assert "worker 0 waits in sum 0, and no other" in str(ended[0].error)
    assert "worker 1 has returned; worker 2 waits in sum 2" in str(ended[0].error)
    assert values(threads, lambda worker: worker, 3) == [0, 1, 2]


def test_a_function_that_waits_again_and_again_ends_with_the_threads(make: Make) -> None:
    """Ctrl-C while a worker is inside: `close` ends what waits, however often it tries."""
    threads = make(2)
    tries: list[str] = []
    main, is_raised = threading.get_ident(), threading.Event()

    def stubborn(worker: int) -> None:
        if worker == 1:
            signal.pthread_kill(main, signal.SIGINT)
            assert is_raised.wait(WATCHDOG_S)
            return
        while len(tries) < 3:
            try:
                threads.wait(worker, "a sum")
            except FlowError as error:
                tries.append(str(error))

    with pytest.raises(KeyboardInterrupt):
        values(threads, stubborn, 2)
    assert threads.is_interrupted
    with pytest.raises(FlowError, match="a step was interrupted, and worker 1 is inside"):
        threads.run({0: lambda: None})
    is_raised.set()
    threads.close()
    assert set(tries) == {"the flow has ended"}
