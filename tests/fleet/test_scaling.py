"""How many workers a fleet has while its load changes: decisions, in virtual time."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from softs_fast.fleet.scaling import LOOK_S, Load, Scaling

#: What the issue of a user allows.
WITHIN_S, MAX_REVERSALS, PER_S = 30.0, 2, 600.0
#: Looks in a row that add workers, and that remove some.
N_WAIT, N_IDLE = 3, 20


class Fleet:
    """A student, its workers, and the decisions; one look after the other.

    Needs are workers' worth: a student with a need of 3 takes what three busy workers make.

    Args:
        seed: Of all that varies.
        bounds: The smallest and the largest number of workers.
        gathers_ahead: Whether native threads wait for samples ahead of the training: those wait all the time as soon as
            workers are too few.
        noise: How much the rate of each worker varies from look to look, as a share; the student's varies a quarter as much.
        start_s: How long a worker takes until it serves: the least, and the most.
    """

    def __init__(
        self,
        seed: int,
        bounds: tuple[int, int],
        gathers_ahead: bool = False,
        noise: float = 0.0,
        start_s: tuple[float, float] = (0.5, 0.5),
    ) -> None:
        self.scaling = Scaling(*bounds)
        self.changes: list[tuple[float, int]] = []
        self.now = 0.0
        self._random = random.Random(seed)
        self._gathers_ahead, self._noise, self._start_s = gathers_ahead, noise, start_s
        self._n_serving = bounds[0]
        self._serve_at: list[float] = []
        #: Samples that are made and not taken, in workers' seconds, and room for them.
        self._ahead, self._room = 0.0, self._random.uniform(0.2, 4.0)

    def look(self, need: float) -> None:
        """Let one interval pass, and decide."""
        self.now += LOOK_S
        before = self._n_serving
        begun = [at for at in self._serve_at if at <= self.now]
        self._serve_at = self._serve_at[len(begun) :]
        self._n_serving += len(begun)
        worked_s = before * LOOK_S + sum(self.now - at for at in begun)
        made = worked_s * max(0.1, self._random.gauss(1.0, self._noise / math.sqrt(before)))
        wanted = need * LOOK_S * max(0.1, self._random.gauss(1.0, self._noise / 4))
        got = min(wanted, self._ahead + made)
        worked = min(made, got - self._ahead + self._room)
        self._ahead = max(0.0, self._ahead + worked - got)
        waited = 1.0 - got / wanted if wanted else 0.0
        if self._gathers_ahead and waited > 0.02:
            waited = 0.99
        n_busy = before * min(1.0, worked / made)
        load = Load(before, n_busy, [(100.0 * got / LOOK_S, waited)])
        n_workers = self.scaling.n_workers
        if self.scaling.decide(load, self.now):
            self.changes.append((self.now, self.scaling.n_workers - n_workers))
            n_starting = max(0, self.scaling.n_workers - self._n_serving)
            n_more = n_starting - len(self._serve_at)
            started = [self.now + self._random.uniform(*self._start_s) for _ in range(n_more)]
            self._serve_at = sorted(self._serve_at[:n_starting] + started)
            self._n_serving = min(self._n_serving, self.scaling.n_workers)

    def n_reversals(self) -> int:
        """The most changes of direction in any ten minutes."""
        signs = [(at, n > 0) for at, n in self.changes]
        at = [now for (_, was), (now, grows) in itertools.pairwise(signs) if was != grows]
        return max((sum(first <= one < first + PER_S for one in at) for first in at), default=0)

    def is_right(self, need: float, bounds: tuple[int, int]) -> bool:
        """Whether students wait for a tenth of the time at most, and how many workers more than busy ones there are."""
        least, most = bounds
        n_workers = self.scaling.n_workers
        enough = min(most, math.ceil(0.9 * need))
        return enough <= n_workers <= max(least, math.ceil(1.75 * need))


def steps_of(seed: int, bounds: tuple[int, int]) -> list[float]:
    """Needs that follow each other: up and down by up to ten times, with as many changes of direction as are allowed."""
    chance = random.Random(seed)
    least, most = bounds
    needs = [chance.uniform(0.3 * least, min(most, 10 * least))]
    grows = chance.random() < 0.5
    # The first need is a step up as well.
    for _ in range(MAX_REVERSALS + grows):
        factor = math.exp(chance.uniform(math.log(1.5), math.log(10.0)))
        need = needs[-1] * factor if grows else needs[-1] / factor
        needs.append(min(max(need, 0.1), 1.2 * most))
        grows = not grows
    return needs


def check(seed: int, are_hosts: bool) -> None:
    chance = random.Random(seed)
    least = chance.randint(1, 20 if are_hosts else 4)
    bounds = (least, chance.randint(least + 1, 50 * least if are_hosts else 16))
    gathers_ahead = seed % 3 == 0
    noise = chance.choice([0.0, 0.05, 0.1, 0.15])
    start_s = (1.5, 4.5) if are_hosts else (chance.uniform(0.2, 1.5),) * 2
    fleet = Fleet(seed, bounds, gathers_ahead, noise, start_s)
    for need in steps_of(seed, bounds):
        began = fleet.now + chance.uniform(0.0, LOOK_S)
        end = began + PER_S / 6
        while fleet.now < end:
            fleet.look(need)
            if fleet.now >= began + WITHIN_S:
                told = f"seed {seed}: need {need:.2f} since {began:.0f} s, {fleet.scaling.n_workers} workers of {bounds}"
                assert fleet.is_right(need, bounds), f"{told} at {fleet.now:.0f} s: {fleet.changes}"
    assert fleet.n_reversals() <= MAX_REVERSALS, f"seed {seed}: {fleet.changes}"


@pytest.mark.parametrize("are_hosts", [False, True])
def test_a_hundred_loads_have_the_right_number_within_30_s(are_hosts: bool) -> None:
    for seed in range(100):
        check(seed, are_hosts)


@pytest.mark.parametrize("seed", range(8))
def test_calls_that_last_longer_than_a_look_have_enough_workers(seed: int) -> None:
    """All calls end at the same time; a student that gathers ahead waits all the time, and gets nothing in most looks."""
    chance = random.Random(seed)
    least = chance.randint(1, 4)
    bounds = (least, chance.randint(least + 1, 16))
    need, call_s = chance.uniform(least, 1.2 * bounds[1]), chance.uniform(LOOK_S, 30.0)
    scaling = Scaling(*bounds)
    n_serving, n_made = least, 0
    for look in range(1, 600):
        now = look * LOOK_S
        n_ends = int(now / call_s) - n_made
        n_made += n_ends
        waited = 0.97 if n_serving < need else 0.0
        n_busy = min(need, n_serving)
        load = Load(n_serving, n_busy, [(n_ends * n_busy / LOOK_S, waited)])
        n_before = scaling.n_workers
        scaling.decide(load, now)
        assert scaling.n_workers >= n_before, f"{now:.0f} s: workers were removed"
        n_serving = scaling.n_workers
    assert min(math.ceil(need), bounds[1]) <= n_serving <= math.ceil(1.5 * need)


def looks(scaling: Scaling, n: int, load: Load, since: float = 0.0) -> list[str]:
    """The reasons of so many looks at the same load; empty ones are left out."""
    return [why for i in range(n) if (why := scaling.decide(load, since + i * LOOK_S))]


WAITING = [(100.0, 0.5)]
CONTENT = [(100.0, 0.0)]


def test_reasons_tell_what_was_measured() -> None:
    scaling = Scaling(2, 8)
    assert looks(scaling, N_WAIT, Load(2, 2.0, WAITING)) == [
        "students wait 50% of the time, workers are busy 100%"
    ]
    assert scaling.n_workers == 3
    assert looks(scaling, N_IDLE, Load(3, 0.3, CONTENT)) == [
        "workers are busy 10% of the time, students do not wait"
    ]
    assert scaling.n_workers == 2


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (Load(2, 1.4, WAITING), "workers are not why they wait: slots are"),
        (Load(2, 2.0, [(100.0, 0.04)]), "that much is copying"),
        (Load(2, 2.0, [(0.0, 1.0)]), "no worker makes what it waits for, or none has yet"),
        (Load(2, 1.5, CONTENT), "a third is spare"),
        (Load(0, 0.0, CONTENT), "none served all the time"),
        (Load(1, 0.1, CONTENT), "one of the two has failed, and starts again"),
    ],
)
def test_nothing_changes_without_need(load: Load, why: str) -> None:
    scaling = Scaling(2, 8)
    assert looks(scaling, 30, load) == [], why
    assert scaling.n_workers == 2


def test_looks_in_which_no_call_ends_leave_the_count_of_those_that_wait() -> None:
    scaling = Scaling(2, 8)
    silent = Load(2, 2.0, [(0.0, 0.97)])
    assert looks(scaling, N_WAIT - 1, Load(2, 2.0, WAITING)) + looks(scaling, 9, silent) == []
    assert len(looks(scaling, 1, Load(2, 2.0, WAITING))) == 1


@pytest.mark.parametrize("students", [[(100.0, 0.1)], [(0.0, 1.0)]])
def test_workers_that_idle_are_removed_while_a_student_waits_for_something_else(
    students: list[tuple[float, float]],
) -> None:
    scaling = Scaling(1, 16)
    scaling.n_workers = 16
    assert looks(scaling, 30, Load(16, 2.0, students)) == [
        "workers are busy 12% of the time, students wait for something else"
    ]
    assert scaling.n_workers == 3


@pytest.mark.parametrize("students", [WAITING, [(0.0, 0.97)]])
def test_workers_that_begin_to_be_busy_while_students_wait_are_kept(
    students: list[tuple[float, float]],
) -> None:
    scaling = Scaling(1, 8)
    scaling.n_workers = 8
    assert looks(scaling, N_IDLE - 1, Load(8, 0.0, CONTENT)) == []
    assert looks(scaling, 2, Load(8, 8.0, students)) == []
    assert scaling.n_workers == 8


def test_a_worker_that_could_not_start_is_wanted_again_after_a_minute() -> None:
    scaling = Scaling(2, 8)
    needs = Load(2, 2.0, WAITING)
    assert len(looks(scaling, N_WAIT, needs)) == 1
    scaling.fail(2, 4.0)
    assert scaling.n_workers == 2
    assert looks(scaling, 59, needs, 5.0) == [], "there is no room for it"
    assert len(looks(scaling, 1, needs, 64.0)) == 1
    assert scaling.n_workers == 3


def test_a_short_wait_is_not_enough() -> None:
    scaling = Scaling(2, 8)
    for _ in range(10):
        assert looks(scaling, N_WAIT - 1, Load(2, 2.0, WAITING)) == []
        assert looks(scaling, 1, Load(2, 2.0, CONTENT)) == []


def test_nothing_is_removed_while_none_serves() -> None:
    scaling = Scaling(1, 8)
    scaling.n_workers = 4
    assert looks(scaling, 30, Load(0, 0.0, CONTENT)) == []


def test_each_worker_that_starts_lets_more_be_added() -> None:
    scaling = Scaling(4, 16)
    waiting = [(10.0, 0.99)]
    assert len(looks(scaling, N_WAIT, Load(4, 4.0, waiting))) == 1
    assert scaling.n_workers == 6
    assert looks(scaling, 30, Load(4, 4.0, waiting)) == [], "two of them load their models"
    assert len(looks(scaling, 1, Load(5, 5.0, waiting))) == 1
    assert scaling.n_workers == 8
    assert len(looks(scaling, 1, Load(6, 6.0, waiting))) == 1
    assert scaling.n_workers == 9


def test_workers_that_were_added_are_kept_until_they_have_served() -> None:
    scaling = Scaling(2, 8)
    assert looks(scaling, N_IDLE - N_WAIT, Load(2, 0.0, CONTENT)) == []
    assert len(looks(scaling, N_WAIT, Load(2, 2.0, [(100.0, 0.4)]))) == 1
    assert looks(scaling, N_IDLE - 1, Load(2, 1.9, CONTENT)) == [], (
        "the third has begun, and is not measured yet"
    )
    assert scaling.n_workers == 3


def test_a_pause_of_ten_seconds_removes_none() -> None:
    scaling = Scaling(1, 60)
    scaling.n_workers = 60
    for _ in range(5):
        assert looks(scaling, N_IDLE, Load(60, 60.0, CONTENT)) == []
        assert looks(scaling, N_IDLE // 2, Load(60, 0.0, CONTENT)) == []


def test_a_load_that_comes_and_goes_keeps_its_workers_for_ten_minutes() -> None:
    scaling = Scaling(1, 2)
    needs, rests = Load(1, 1.0, WAITING), Load(2, 0.0, CONTENT)
    for round_ in range(2):
        since = 100.0 * round_
        assert len(looks(scaling, N_WAIT, needs, since)) == 1, "more are added always"
        assert len(looks(scaling, 30, rests, since + 10.0)) == (round_ == 0), "the third change of direction"
    assert scaling.n_workers == 2
    assert looks(scaling, 30, rests, 590.0) == []
    assert len(looks(scaling, 30, rests, 640.0)) == 1
