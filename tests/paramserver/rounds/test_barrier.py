"""Rounds with a quorum: when they open, wait and close."""

from __future__ import annotations

import itertools

import pytest
from driven_run import DrivenRun

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.arrivals import Arrivals
from softs_fast.paramserver.rounds.events import Version


def test_the_first_round_waits_for_the_world() -> None:
    run = DrivenRun(world=3)
    run.join("a", "b")
    assert run.phase == "waiting"
    assert run.text == "waits for workers: 2 of 3 are here"
    run.push("a")
    assert run.phase == "waiting"
    run.join("c")
    assert run.phase == "open"
    run.push("b")
    assert run.phase == "grace"
    run.push("c")
    assert [one.worker for one in run.one(events.Apply).shares] == ["a", "b", "c"]


def test_the_owner_may_start_with_fewer() -> None:
    run = DrivenRun(world=4)
    run.join("a", "b")
    run.tell(events.Start())
    assert run.phase == "open"


def test_a_round_closes_with_the_last_active_member() -> None:
    run = DrivenRun(world=2)
    run.join("a", "b")
    assert run.push("a", samples=3) == events.Counted(1, 1)
    assert run.phase == "grace"
    assert run.push("b", samples=1) == events.Counted(2, 1)
    step = run.one(events.Apply)
    assert step.version == Version(1, 0)
    assert [(one.rank, one.worker, one.weight) for one in step.shares] == [(0, "a", 3), (1, "b", 1)]
    assert step.divisor == 4
    assert step.rate_factor == 2.0
    run.tell(events.Applied())
    assert run.run.version == Version(1, 1)
    assert run.phase == "open"
    assert len(run.all(events.Drop)) == 2
    assert run.one(events.Save).snapshot.version == 1


def test_the_rate_is_not_scaled_if_told_so() -> None:
    run = DrivenRun(world=2, scale_by_world=False)
    run.join("a", "b")
    run.push("a")
    run.push("b")
    assert run.one(events.Apply).rate_factor == 1.0


def test_any_order_of_arrival_gives_the_same_step() -> None:
    steps = set()
    for order in itertools.permutations("abcd"):
        run = DrivenRun(world=4, quorum=4)
        run.join(*"abcd")
        for worker in order:
            run.push(worker, samples=1 + ord(worker) % 3)
        step = run.one(events.Apply)
        steps.add(tuple((one.rank, one.worker, one.weight) for one in step.shares))
    assert len(steps) == 1


def test_the_same_push_counts_once() -> None:
    run = DrivenRun(world=2, quorum=2)
    run.join("a", "b")
    run.push("a")
    assert run.push("a") == events.AlreadyCounted()
    assert run.one(events.Drop).content == 2
    assert run.phase == "open"
    run.push("b")
    run.tell(events.Applied())
    # Its answer was lost, and the round is closed.
    assert run.push("a", Version(1, 0)) == events.AlreadyCounted()


def test_a_push_during_the_step_is_stale() -> None:
    run = DrivenRun(world=3, quorum=1, round_samples=1)
    run.join("a", "b", "c")
    run.push("a")
    assert run.phase == "apply"
    answer = run.push("b")
    assert isinstance(answer, events.Stale)
    assert answer.next == Version(1, 1)
    run.tell(events.Applied())
    answer = run.push("c", Version(1, 0))
    assert isinstance(answer, events.Stale)
    assert answer.next == Version(1, 1)
    assert "closed" in answer.why


def test_a_push_of_another_timeline_or_of_the_future_is_stale() -> None:
    run = DrivenRun(world=1)
    run.join("a")
    for base, why in ((Version(2, 0), "timeline"), (Version(1, 1), "no version")):
        answer = run.push("a", base)
        assert isinstance(answer, events.Stale)
        assert why in answer.why
    assert run.phase == "open"


def test_an_offer_counts_nothing() -> None:
    run = DrivenRun(world=1)
    run.join("a")
    assert run.tell(events.Offer("a", Version(1, 0))) == events.Wanted()
    assert isinstance(run.tell(events.Offer("a", Version(1, 4))), events.Stale)
    run.push("a")
    assert run.tell(events.Offer("a", Version(1, 0))) == events.AlreadyCounted()


def test_without_history_a_quorum_waits_for_all() -> None:
    run = DrivenRun(world=2, quorum=1)
    run.join("a", "b")
    run.push("a")
    assert not [one for one in run.wait(100.0, "a", "b") if isinstance(one, events.Apply)]
    assert run.phase == "grace"
    assert 'worker "b" (rank 1)' in run.text
    run.push("b")
    assert run.all(events.Apply)


def test_the_grace_follows_earlier_rounds() -> None:
    """Offsets 2, 2, 4: median 2, MAD 0; with 2, 3, 4: median 3, MAD 1, so 7 seconds."""
    run = DrivenRun(world=3, quorum=2)
    run.join("a", "b", "c")
    for worker, after_s in (("a", 2.0), ("b", 1.0), ("c", 1.0)):
        run.wait(after_s, "a", "b", "c")
        run.push(worker)
    run.tell(events.Applied())
    run.wait(1.0, "a", "b", "c")
    run.push("a")
    run.push("b")
    assert not [one for one in run.wait(5.9, "a", "b", "c") if isinstance(one, events.Apply)]
    assert [one for one in run.wait(0.2, "a", "b", "c") if isinstance(one, events.Apply)]


def test_the_grace_is_a_second_at_least() -> None:
    run = DrivenRun(world=2, quorum=1)
    run.join("a", "b")
    run.round("a", "b")
    run.wait(5.0, "a", "b")
    run.push("a")
    assert not [one for one in run.wait(0.9, "a", "b") if isinstance(one, events.Apply)]
    assert [one for one in run.wait(0.2, "a", "b") if isinstance(one, events.Apply)]


def test_a_late_push_makes_the_grace_longer() -> None:
    arrivals = Arrivals()
    arrivals.opened(0, 10.0)
    arrivals.arrived(0, 11.0)
    assert arrivals.deadline_s() is None
    arrivals.opened(1, 12.0)
    assert arrivals.deadline_s() == 1.0
    arrivals.arrived(0, 15.0)
    assert arrivals.deadline_s() == 3.0 + 4 * 2.0
    for number in range(2, 22):
        arrivals.opened(number, 100.0)
        arrivals.arrived(number, 100.5)
    assert arrivals.deadline_s() == 0.5


def test_the_deadline_of_the_user_bounds_a_round() -> None:
    run = DrivenRun(world=3, quorum=2, round_deadline_s=10.0)
    run.join("a", "b", "c")
    run.push("a")
    run.wait(11.0, "a", "b", "c")
    assert run.phase == "open"
    (log,) = run.all(events.Log)
    assert log.text == "round 0 is open for 10 s and has 1 of 2 pushes; it stays open"
    run.push("b")
    assert run.all(events.Apply), "the deadline is over, and there is a quorum"


def test_enough_samples_close_a_round() -> None:
    run = DrivenRun(world=3, round_samples=10)
    run.join("a", "b", "c")
    run.push("a", samples=9)
    assert not run.all(events.Apply)
    run.push("b", samples=1)
    assert run.all(events.Apply)


def test_a_silent_member_is_removed_once() -> None:
    run = DrivenRun(world=2, quorum=1, lease_s=20.0)
    run.join("a", "b")
    run.wait(5.0, "a")
    run.push("a")
    actions = run.wait(14.9, "a")
    assert not [one for one in actions if isinstance(one, events.Apply)]
    actions = run.wait(0.2, "a")
    assert [one for one in actions if isinstance(one, events.Apply)]
    run.tell(events.Applied())
    # The next round does not wait for it at all.
    run.push("a")
    assert run.all(events.Apply)


def test_the_push_of_a_dead_worker_counts() -> None:
    run = DrivenRun(world=2, quorum=2)
    run.join("a", "b")
    run.push("a")
    run.wait(30.0, "b")
    assert run.phase == "open"
    run.push("b")
    assert len(run.one(events.Apply).shares) == 2


def test_below_the_quorum_a_round_stays_open() -> None:
    run = DrivenRun(world=2, quorum=2)
    run.join("a", "b")
    run.round("a", "b")
    run.tell(events.Leave("b"))
    run.push("a")
    run.wait(100.0, "a")
    assert run.phase == "open"
    assert run.text == "1 of 2 pushes are here; waits for more workers"
    run.join("c")
    run.push("c")
    assert run.all(events.Apply)


def test_a_joiner_is_waited_for() -> None:
    run = DrivenRun(world=1)
    run.join("a")
    run.join("b")
    run.push("a")
    assert not run.all(events.Apply)
    run.push("b")
    assert len(run.one(events.Apply).shares) == 2


def test_a_step_that_is_not_finite_is_skipped() -> None:
    run = DrivenRun(world=1)
    run.join("a")
    run.push("a")
    run.tell(events.Applied(is_finite=False))
    assert run.run.version == Version(1, 1)
    assert run.run.status(0.0).skipped == 1
    assert any(one.is_warning for one in run.all(events.Log))


@pytest.mark.parametrize("save_every", [1, 3])
def test_files_are_written_each_k_versions(save_every: int) -> None:
    run = DrivenRun(world=1, save_every=save_every, rounds=10)
    run.join("a")
    saved = []
    for _ in range(10):
        run.round("a")
        saved += [one.snapshot.version for one in run.all(events.Save)]
    assert saved == [*range(save_every, 10, save_every), 10]
    assert run.one(events.Ended) == events.Ended("all 10 rounds are done", False)
