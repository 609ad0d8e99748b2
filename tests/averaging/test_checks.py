"""Ranks compare metrics of one check: in virtual time, at any speed, with ranks that start late, stop and join."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from memory_board import MemoryBoard, World

from softs_fast.averaging import Event, Rules, Schedule, SelectiveAveraging
from softs_fast.averaging.reports import MAX_BEHIND, MAX_REPORTS, Report, is_awaited, next_check

EVERY = 10


class Runners:
    """Ranks of which each makes its steps on its own; the metric of a rank is a function of its number and its step."""

    def __init__(self, n: int, metric: Callable[[int, int], float], *, is_fixed: bool = False) -> None:
        self.world = World(is_fixed=is_fixed)
        self.metric = metric
        self.steps = [0] * n
        self.ranks = [self._make(rank) for rank in range(n)]
        self.events: list[Event] = []
        if is_fixed:  # opening is a call of all ranks
            for rank in self.ranks:
                rank._digest = rank._board.open(rank._shared.tensors())

    def _make(self, rank: int) -> SelectiveAveraging:
        return SelectiveAveraging(
            torch.nn.Linear(1, 1),
            None,
            Rules(every=EVERY, replace_worst=0.01),
            meet=MemoryBoard(self.world, rank),
            schedule=Schedule(max_wait_steps=EVERY),
            clock=self.world.clock,
        )

    def join(self) -> int:
        self.ranks.append(self._make(len(self.ranks)))
        self.steps.append(0)
        return len(self.ranks) - 1

    def step(self, rank: int, n: int = 1) -> None:
        for _ in range(n):
            self.world.now_s += 1.0
            self.steps[rank] += 1
            event = self.ranks[rank].step(self.metric(rank, self.steps[rank]))
            if event is not None:
                self.events.append(event)

    def replaced(self) -> set[int]:
        return {event.rank for event in self.events}


@pytest.mark.parametrize("slope", [1.0, -1.0])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_metrics_that_rise_or_fall_replace_the_worst_rank_and_no_other(
    slope: float, order: tuple[int, ...]
) -> None:
    runners = Runners(4, lambda rank, step: slope * step + rank / 10)
    for _ in range(20 * 2 * EVERY):
        for rank in order:
            runners.step(rank)
    assert runners.replaced() == {0}
    assert len(runners.events) >= 20
    assert {len(event.donations) for event in runners.events} == {3}


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_a_rank_some_checks_behind_is_compared_at_the_same_steps(slope: float) -> None:
    runners = Runners(3, lambda rank, step: slope * step + rank / 10, is_fixed=True)
    runners.step(1, 2 * EVERY)
    runners.step(2, EVERY)
    for _ in range(10 * EVERY):
        for rank in range(3):
            runners.step(rank)
    assert runners.replaced() == {0}


def test_in_a_fixed_group_no_rank_is_replaced_before_all_have_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runners = Runners(3, lambda rank, step: float(rank), is_fixed=True)
    for _ in range(10 * EVERY):
        runners.step(1)
        runners.step(2)
    assert runners.events == [], "rank 1 would be the worst of two"
    assert "no report yet of ranks [0]" in caplog.text
    for _ in range(10 * EVERY):
        for rank in range(3):
            runners.step(rank)
    assert runners.replaced() == {0}
    assert {len(event.donations) for event in runners.events} == {2}


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_rank_that_stops_loses_its_place_and_gets_it_back(is_fixed: bool) -> None:
    runners = Runners(3, lambda rank, step: float(rank), is_fixed=is_fixed)
    for _ in range(EVERY - 1):
        for rank in range(3):
            runners.step(rank)
    runners.step(0)  # the worst one reports its check, and stops
    for _ in range(2 * EVERY):
        runners.step(1)
        runners.step(2)
    if is_fixed:
        assert runners.events == [], "its report is awaited for some checks"
    for _ in range(MAX_BEHIND * EVERY):
        runners.step(1)
        runners.step(2)
    assert runners.replaced() == {1}, "the worst of those that go on"
    assert {donation.rank for event in runners.events for donation in event.donations} == {2}
    runners.events.clear()
    for _ in range(5 * EVERY):
        for rank in range(3):
            runners.step(rank)
    assert runners.events[-1].rank == 0


def test_a_dead_rank_is_not_waited_for() -> None:
    runners = Runners(3, lambda rank, step: float(rank), is_fixed=True)
    runners.world.dead.add(0)
    for _ in range(3 * EVERY):
        runners.step(1)
        runners.step(2)
    assert runners.replaced() == {1}


def test_a_rank_that_joins_late_is_compared_with_what_the_others_are_now() -> None:
    runners = Runners(3, lambda rank, step: float(-rank) if rank < 3 else -10.0)
    for _ in range(100 * EVERY):
        for rank in range(3):
            runners.step(rank)
    runners.events.clear()
    late = runners.join()
    for _ in range(4 * EVERY):
        for rank in range(4):
            runners.step(rank)
    assert runners.events[-1].rank == late
    assert len(runners.events[-1].donations) == 3


def test_a_rank_of_half_the_speed_is_replaced_if_it_is_the_worst() -> None:
    runners = Runners(3, lambda rank, step: float(rank))
    for number in range(100 * EVERY):
        for rank in range(3):
            if rank or number % 2:
                runners.step(rank)
    assert sum(event.rank == 0 for event in runners.events) >= 5


def test_numbers_of_checks_follow_those_of_the_others() -> None:
    def reports(*checks: int) -> list[Report]:
        return [Report(check, 0.5, 1) for check in checks]

    assert next_check(0, []) == next_check(0, [[]]) == 1
    assert next_check(0, [reports(1, 2, MAX_BEHIND)]) == 1
    assert next_check(0, [reports(1), reports(99, 100)]) == 100
    assert next_check(7, [reports(5)]) == 8
    assert is_awaited([], 3, 3)
    assert is_awaited(reports(1, 2), 3, 3)
    assert not is_awaited(reports(3), 3, 3)
    assert not is_awaited(reports(5, 6), 3, 3)
    assert not is_awaited(reports(2), 3, 3 + MAX_BEHIND)
    assert MAX_REPORTS > 2 * MAX_BEHIND


def test_a_metric_that_is_not_known_yet_is_a_report_too() -> None:
    runners = Runners(3, lambda rank, step: math.nan if rank == 2 else float(rank), is_fixed=True)
    for _ in range(3 * EVERY):
        runners.ranks[0].step(None)
        runners.step(1)
        runners.step(2)
    assert runners.replaced() == {2}
    assert {donation.rank for event in runners.events for donation in event.donations} == {1}
