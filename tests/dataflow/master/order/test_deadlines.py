"""Deadlines in virtual time: workers that stop at any moment are found and named, those that wait for them are not."""

from __future__ import annotations

import random

import pytest
from random_plans import random_plan
from simulated_flow import STRAGGLER, World

from softs_fast.dataflow.master.order.deadlines import Deadlines, Late, Seen, culprits
from softs_fast.dataflow.master.order.steps import Kind, Step

#: Longer than any step takes from the time when all could be inside; messages travel 0.2 s at most each way.
DEADLINE_S = STRAGGLER + 2.0


def ticket(number: int, *missing: int, since_s: float = 0.0) -> Step:
    workers = frozenset(missing)
    return Step(
        *(Kind.MAIN, workers, None, 1.0, number, number, f"f{number}"),
        missing=set(missing),
        since_s=since_s,
    )


def test_the_time_of_a_step_begins_when_its_worker_could_be_inside() -> None:
    deadlines = Deadlines(lambda one: 5.0)
    first, second = ticket(1, 0), ticket(2, 0)
    deadlines.observe([first, second], 10.0)
    assert deadlines.due_s() == 15.0
    deadlines.observe([first, second], 14.0)
    assert not deadlines.late(14.9)
    deadlines.observe([second], 14.9)  # it was posted at 10
    assert not deadlines.late(19.8)
    assert deadlines.late(20.0) == [Late(second, frozenset({0}), 14.9, 5.0)]


def test_waiting_for_a_participant_that_has_not_arrived_is_not_counted() -> None:
    deadlines = Deadlines(lambda one: 5.0 if one.ticket == 2 else 100.0)
    slow, both = ticket(1, 1), ticket(2, 0, 1)
    deadlines.observe([slow, both], 0.0)
    assert deadlines.due_s() == 100.0
    assert not deadlines.late(50.0), "worker 0 waits for worker 1, which has time"
    deadlines.observe([both], 50.0)
    assert deadlines.due_s() == 55.0
    assert deadlines.late(55.0)[0].workers == {0, 1}


def test_the_time_of_a_step_begins_when_all_its_workers_have_been_told() -> None:
    deadlines = Deadlines(lambda one: 5.0)
    both = ticket(2, 0, 1)
    deadlines.observe([both], 0.0, held_back={2})
    assert deadlines.due_s() is None
    deadlines.observe([both], 50.0)
    assert deadlines.due_s() == 55.0


def test_a_step_that_has_begun_goes_on_when_its_last_participant_has_ended_it() -> None:
    deadlines = Deadlines(lambda one: 5.0)
    before, both = ticket(1, 1), ticket(2, 0, 1)
    deadlines.observe([before, both], 0.0)
    deadlines.observe([both], 30.0)
    both.missing.discard(1)
    deadlines.observe([both], 34.0)
    assert not deadlines.late(34.0), "worker 0 was there since 0, the step began at 30"
    assert deadlines.due_s() == 35.0


def test_steps_without_a_deadline_are_never_late() -> None:
    deadlines = Deadlines(lambda one: None)
    deadlines.observe([ticket(1, 0)], 0.0)
    assert deadlines.due_s() is None
    assert not deadlines.late(1e9)


def test_those_that_remain_in_a_step_get_their_time_again() -> None:
    deadlines = Deadlines(lambda one: 5.0)
    both = ticket(1, 0, 1)
    deadlines.observe([both], 0.0)
    (late,) = deadlines.late(6.0)
    both.missing.discard(1)
    deadlines.restart(late, 6.0)
    deadlines.observe([both], 6.1)
    assert deadlines.due_s() == 11.0


@pytest.mark.parametrize(
    ("seen", "named", "why"),
    [
        ({0: Seen(waits="weights", inside=7), 1: Seen("stopped by a signal (state T)")}, {1}, "state T"),
        ({0: Seen(inside=7), 1: Seen(answers=False)}, {1}, "does not answer"),
        ({0: Seen(waits="weights", inside=7), 1: Seen(inside=7)}, {1}, "its process runs"),
        ({0: Seen(waits="weights", inside=7), 1: Seen(inside=None)}, {1}, "has not begun"),
        (
            {0: Seen(waits="weights", inside=7), 1: Seen(waits="weights", inside=7)},
            {0, 1},
            "waits for weights",
        ),
        ({0: Seen("stopped by a signal (state T)"), 1: Seen(answers=False)}, {0}, "state T"),
    ],
)
def test_of_several_the_one_that_does_not_merely_wait_is_named(
    seen: dict[int, Seen], named: set[int], why: str
) -> None:
    late = Late(ticket(7, 0, 1), frozenset({0, 1}), 1.0, 5.0)
    found = culprits(late, seen, 6.5)
    assert set(found) == named
    for text in found.values():
        assert text.startswith(
            "ticket 7, main of f7 (call 7), is with it since 5.5 s, and its deadline is 5 s; "
        )
        assert why in text
        assert (f"not to blame there: worker {1 - min(named)}" in text) == (len(named) == 1)


class StoppingWorld(World):
    """Workers stop without a word; deadlines alone find them."""

    def __init__(self, seed: int, n_groups: int, stops: dict[int, int]) -> None:
        choice = random.Random(seed)
        super().__init__(seed, random_plan(choice), n_groups)
        self.stops = stops
        self.stopped: dict[int, float] = {}
        self.named: dict[int, str] = {}
        self.timers: set[float] = set()
        self.deadlines = Deadlines(lambda one: DEADLINE_S)

    def act(self) -> None:
        if self.n_events in self.stops:
            number = self.random.choice(sorted(set(self.workers) - {-1}))
            if self.workers[number].is_alive:
                self.workers[number].is_alive = False
                self.stopped[number] = self.now_s
        super().act()
        self.look()

    def look(self) -> None:
        self.deadlines.observe(self.master.order.tickets, self.now_s)
        for late in self.deadlines.late(self.now_s):
            seen = {
                worker: Seen(stopped="" if worker not in self.stopped else "stopped")
                for worker in late.workers
            }
            for worker, reason in culprits(late, seen, self.now_s).items():
                self.named[worker] = reason
                self.master.order.lose(worker, reason)
            self.deadlines.restart(late, self.now_s)
            self.later(0.0, self.act)
        due_s = self.deadlines.due_s()
        if due_s is not None and due_s not in self.timers:
            self.timers.add(due_s)
            self.at(max(due_s, self.now_s), self.act)


def test_workers_that_stop_at_any_moment_are_named_and_all_calls_are_answered() -> None:
    n_named = 0
    for seed in range(100):
        choice = random.Random(seed)
        stops = {choice.randint(1, 120): 0 for _ in range(choice.randint(0, 2))}
        world = StoppingWorld(seed, choice.randint(2, 30), stops)
        world.run()
        order = world.master.order
        assert not order.tickets, f"seed {seed}: stuck: {order.tickets}"
        assert not world.master.calls
        assert set(world.answers) == set(world.calls)
        assert set(world.answers.values()) <= {1}
        assert set(world.named) <= set(world.stopped), f"seed {seed}: a worker that runs was named"
        n_named += len(world.named)
    assert n_named > 25
