"""Calls that wait for tickets are asked in the order of their age, and those alike to one that waits are not asked."""

from __future__ import annotations

import random

from softs_fast.dataflow.master.order.ready import ReadyCalls
from softs_fast.dataflow.master.order.steps import CallState, Kind, Step


def call(number: int, workers: set[int], *, oldest: int | None = None) -> CallState:
    step = Step(Kind.MAIN, frozenset(workers))
    return CallState(number, "f", (step,), number if oldest is None else oldest)


def test_of_calls_alike_only_the_oldest_is_asked_while_it_waits() -> None:
    ready, asked = ReadyCalls(), []
    for number in range(2000):
        ready.add(call(number, {number % 2}))
    ready.remove(0)

    def begin(one: CallState) -> bool:
        asked.append(one.number)
        return False

    ready.visit(begin)
    assert asked == [1, 2]
    assert len(ready) == 1999
    assert 0 not in ready


def test_calls_with_a_worker_that_is_not_there_are_known() -> None:
    ready = ReadyCalls()
    for number in (3, 1, 2):
        ready.add(call(number, {0}))
    assert ready.beyond({0}) == []
    assert [one.number for one in ready.beyond({1})] == [3, 1, 2]


def test_the_same_calls_begin_as_by_a_walk_over_all() -> None:
    """As the sequencer asks: a worker has room for some calls, and a call that waits keeps its workers."""
    for seed in range(80):
        chance = random.Random(seed)
        ready, plain, number = ReadyCalls(), dict[int, CallState](), 0
        for _ in range(20):
            for _ in range(chance.randrange(6)):
                number += 1
                some = set(chance.sample(range(4), chance.randint(1, 3)))
                plain[number] = call(number, some, oldest=chance.randrange(8))
                ready.add(plain[number])
            if plain and chance.random() < 0.3:
                gone = chance.choice(list(plain))
                assert ready.remove(gone) is plain.pop(gone)
            room = [chance.randrange(3) for _ in range(4)]
            assert begun(ready, list(room)) == walked(plain, room)
            assert list(ready) == sorted(plain.values(), key=lambda one: (one.oldest, one.number))


def begun(ready: ReadyCalls, room: list[int]) -> list[int]:
    found, kept = list[int](), set[int]()

    def begin(one: CallState) -> bool:
        if one.workers & kept or not all(room[worker] for worker in one.workers):
            kept.update(one.workers)
            return False
        for worker in one.workers:
            room[worker] -= 1
        found.append(one.number)
        ready.remove(one.number)
        return True

    ready.visit(begin)
    return found


def walked(plain: dict[int, CallState], room: list[int]) -> list[int]:
    found, kept = list[int](), set[int]()
    for one in sorted(plain.values(), key=lambda one: (one.oldest, one.number)):
        if one.workers & kept or not all(room[worker] for worker in one.workers):
            kept |= one.workers
            continue
        for worker in one.workers:
            room[worker] -= 1
        found.append(one.number)
        del plain[one.number]
    return found
