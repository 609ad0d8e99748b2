"""Which worker runs: one at a time, by number, and the same each time."""

from __future__ import annotations

import random

import pytest

from softs_fast.dataflow.lockstep.turns import Turns


def test_a_worker_runs_until_it_waits_and_then_the_next_one_by_number() -> None:
    turns = Turns([2, 0, 1])
    seen = []
    for _ in range(3):
        worker = turns.next()
        assert worker is not None
        seen.append(worker)
        turns.wait(worker, "a sum")
    assert seen == [0, 1, 2]
    assert turns.next() is None
    assert turns.waiting == (0, 1, 2)
    for worker in (2, 0):
        turns.wake(worker)
    turns.wake(7)  # it does not wait
    assert turns.next() == 0
    turns.end(0, failed=False)
    assert turns.next() == 2
    turns.end(2, failed=True)
    assert turns.next() is None
    assert turns.why_stuck(1) == (
        "worker 1 waits in a sum, and no other worker can go on: worker 0 has returned; worker 2 has failed; all ranks "
        "have to make the same calls"
    )


@pytest.mark.parametrize("seed", range(50))
def test_all_end_in_one_order_if_each_that_waits_is_woken(seed: int) -> None:
    """Workers meet a number of times; the trace depends on nothing but the numbers."""

    def trace() -> list[tuple[int, str]]:
        numbers = random.Random(seed)
        workers = numbers.sample(range(20), numbers.randint(1, 6))
        turns, left = Turns(workers), dict.fromkeys(workers, numbers.randint(0, 4))
        here: set[int] = set()
        found = []
        while (worker := turns.next()) is not None:
            if not left[worker]:
                turns.end(worker, failed=False)
                found.append((worker, "end"))
                continue
            left[worker] -= 1
            here.add(worker)
            found.append((worker, "meet"))
            if here == set(workers):
                here.clear()
                for one in workers:
                    turns.wake(one)
            else:
                turns.wait(worker, "a sum")
        assert not turns.waiting
        assert sorted(one for one, what in found if what == "end") == sorted(workers)
        return found

    assert trace() == trace()
