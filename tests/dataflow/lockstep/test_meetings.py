"""Where ranks wait for each other: values in their order, once combined, and errors for all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import softs_fast.dataflow as df
from softs_fast.dataflow.lockstep.groups import LockstepGroups, Meetings
from softs_fast.dataflow.lockstep.threads import Ended, LockstepThreads
from softs_fast.errors import FlowError

N_WORKERS = 3


@pytest.fixture
def threads() -> Iterator[LockstepThreads]:
    found = LockstepThreads(range(N_WORKERS))
    yield found
    found.close()


def run(threads: LockstepThreads, part: Callable[[int], Any]) -> dict[int, Ended]:
    return threads.run({worker: functools.partial(part, worker) for worker in range(N_WORKERS)})


def test_values_are_in_the_order_of_the_members_and_are_combined_once(threads: LockstepThreads) -> None:
    meetings, calls = Meetings(threads), []

    def combine(values: list[Any]) -> list[Any]:
        calls.append(values)
        return values

    def part(worker: int) -> Any:
        return [
            meetings.meet(worker, (2, 0, 1), "key", f"round {number}", 10 * number + worker, combine)
            for number in range(2)
        ]

    ended = run(threads, part)
    assert calls == [[2, 0, 1], [12, 10, 11]]
    assert all(one.value == calls for one in ended.values())


def test_pairs_that_meet_in_different_orders(threads: LockstepThreads) -> None:
    """0 meets 1, then 2; 1 meets 2, then 0: a circle, which would hang in processes."""
    meetings = Meetings(threads)

    def part(worker: int, base: int, others: dict[int, tuple[int, ...]]) -> Any:
        return [
            meetings.meet(worker, pair, pair, "pair", base + worker, sum)
            for pair in (tuple(sorted((worker, other))) for other in others[worker])
        ]

    def meet(base: int, others: dict[int, tuple[int, ...]]) -> dict[int, Ended]:
        return run(threads, functools.partial(part, base=base, others=others))

    good = meet(0, {0: (1, 2), 1: (0, 2), 2: (0, 1)})
    assert [good[worker].value for worker in range(3)] == [[1, 2], [1, 3], [2, 3]]
    circle = meet(0, {0: (1, 2), 1: (2, 0), 2: (0, 1)})
    assert all(isinstance(one.error, FlowError) and one.was_stuck for one in circle.values())
    # What was brought in vain is not there any more.
    again = meet(10, {0: (2, 1), 1: (2, 0), 2: (0, 1)})
    assert [again[worker].value for worker in range(3)] == [[22, 21], [23, 21], [22, 23]]


def test_ranks_that_say_different_things_all_fail(threads: LockstepThreads) -> None:
    meetings = Meetings(threads)
    names = ("x" * 300, "x" * 299 + "y", "x" * 300)

    def part(worker: int) -> Any:
        return meetings.meet(worker, range(3), 0, names[worker], None, len, where="over dp")

    for one in run(threads, part).values():
        assert isinstance(one.error, FlowError)
        assert not one.was_stuck
        assert "worker 1 is in xxx" in str(one.error)
        assert "... over dp" in str(one.error)


def test_the_workers_of_a_role_agree(threads: LockstepThreads) -> None:
    class Model(df.Role): ...

    role, meetings = df.place(Model, "dp3", on=[0, 2, 1]), Meetings(threads)

    def part(worker: int, bad: int) -> Any:
        groups = LockstepGroups(meetings, worker)
        assert groups.mesh(role) is None
        assert groups.group(role) is None
        assert groups.ranks(role)["dp"].size == 3
        return groups.agree(role, worker != bad)

    for bad, due in ((2, False), (7, True)):
        ended = run(threads, functools.partial(part, bad=bad))
        assert [one.value for one in ended.values()] == [due] * 3
