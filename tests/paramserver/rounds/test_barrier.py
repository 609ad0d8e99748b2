"""Rounds with a quorum: when they open, wait and close."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from driven_run import joined

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.events import Version
from softs_fast.paramserver.rounds.pace import paying_s


def test_the_first_round_waits_for_the_world() -> None:
    run = joined("a", "b", world_size=3)
    assert run.phase == "waiting"
    assert run.text == "waits for workers: 2 of 3 are here"
    run.push("a")
    assert run.phase == "waiting"
    run.join("c")
    assert run.phase == "open"
    run.push("b")
    assert run.phase == "grace"
    run.push("c")
    assert [one.push.worker_id for one in run.one(events.Apply).shares] == ["a", "b", "c"]


def test_the_owner_may_start_with_fewer() -> None:
    run = joined("a", "b", world_size=4)
    run.tell(events.Start())
    assert run.phase == "open"


def test_a_round_closes_with_the_last_active_member() -> None:
    run = joined("a", "b")
    assert run.push("a", samples=3) == events.Counted(1, 1)
    assert run.phase == "grace"
    assert run.push("b", samples=1) == events.Counted(2, 1)
    step = run.one(events.Apply)
    assert step.version == Version(1, 0)
    assert [(one.rank, one.push.worker_id, one.weight) for one in step.shares] == [(0, "a", 3), (1, "b", 1)]
    assert step.divisor == 4
    assert step.rate_factor == 2.0
    run.tell(events.Applied())
    assert run.run.version == Version(1, 1)
    assert run.phase == "open"
    assert len(run.all(events.Drop)) == 2
    assert run.one(events.Save).snapshot.version == 1


def test_the_rate_is_not_scaled_if_told_so() -> None:
    run = joined("a", "b", scale_rate="none")
    run.push("a")
    run.push("b")
    assert run.one(events.Apply).rate_factor == 1.0


def test_any_order_of_arrival_gives_the_same_step() -> None:
    steps = set()
    for order in itertools.permutations("abcd"):
        run = joined(*"abcd", world_size=4, quorum=4)
        for worker in order:
            run.push(worker, samples=1 + ord(worker) % 3)
        step = run.one(events.Apply)
        steps.add(tuple((one.rank, one.push.worker_id, one.weight) for one in step.shares))
    assert len(steps) == 1


def test_the_same_push_counts_once() -> None:
    run = joined("a", "b", quorum=2)
    run.push("a")
    assert run.push("a").again
    assert run.one(events.Drop).content == 2
    assert run.phase == "open"
    run.push("b")
    run.tell(events.Applied())
    # Its answer was lost, and the round is closed.
    assert run.push("a", Version(1, 0)).again


def test_a_push_during_the_step_is_stale() -> None:
    run = joined("a", "b", "c", quorum=1, round_samples=1)
    run.push("a")
    assert run.phase == "apply"
    answer = run.push("b")
    assert isinstance(answer, events.Stale)
    assert (answer.timeline, answer.version) == (1, 1)
    run.tell(events.Applied())
    answer = run.push("c", Version(1, 0))
    assert isinstance(answer, events.Stale)
    assert (answer.timeline, answer.version) == (1, 1)
    assert "closed" in answer.message


def test_a_push_of_another_timeline_or_of_the_future_is_stale() -> None:
    run = joined("a")
    for base, reason in ((Version(2, 0), "timeline"), (Version(1, 1), "no version")):
        answer = run.push("a", base)
        assert isinstance(answer, events.Stale)
        assert reason in answer.message
    assert run.phase == "open"


def test_an_offer_counts_nothing() -> None:
    run = joined("a")
    assert run.tell(events.Offer("a", Version(1, 0))) == events.Noted()
    assert isinstance(run.tell(events.Offer("a", Version(1, 4))), events.Stale)
    run.push("a")
    assert run.tell(events.Offer("a", Version(1, 0))).again


def test_the_first_round_with_a_quorum_closes_without_a_worker_that_hangs() -> None:
    """Its heartbeats renew its lease, and no round before tells how long one takes."""
    run = joined("a", "b", quorum=1)
    run.wait(4.0, "a", "b")
    run.push("a")
    assert run.phase == "grace"
    assert 'worker "b" (rank 1)' in run.text
    assert not [one for one in run.wait(0.9, "a", "b") if isinstance(one, events.Apply)]
    assert [one for one in run.wait(0.2, "a", "b") if isinstance(one, events.Apply)]


def seconds_of_rounds(seconds: dict[str, float], n: int, **options: Any) -> list[float]:
    """Return how long each of n rounds was, of workers that push so many seconds after they got weights."""
    run = joined(*seconds, **options)
    version, rounds, began_s = run.run.version, [], 0.0
    for worker in seconds:
        run.tell(events.Pull(worker))
    ready = {worker: (one, version) for worker, one in seconds.items()}
    while len(rounds) < n:
        at_s = min(one for one, _ in ready.values())
        for _ in range(2):
            wake_s = run.run.next_wake_s()
            if run.phase == "grace" and wake_s is not None and wake_s < at_s:
                at_s = wake_s
        run.tell(events.Tick(), at_s - run.now_s)
        is_apply = bool(run.all(events.Apply))
        for worker, (one, base) in ready.items():
            if one <= run.now_s and not is_apply:
                run.push(worker, base)
                is_apply = bool(run.all(events.Apply))
                ready[worker] = (math.inf, base)
            elif worker in seconds:
                run.tell(events.Seen(worker))
        if is_apply:
            run.tell(events.Applied())
            rounds.append(run.now_s - began_s)
            began_s = run.now_s
        for worker, (one, base) in ready.items():
            if one == math.inf and run.tell(events.Pull(worker, base)) == events.Serve(run.run.version):
                ready[worker] = (run.now_s + seconds[worker], run.run.version)
    return rounds


@pytest.mark.parametrize("quorum", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.01, 1.0, 60.0])
def test_a_worker_twenty_times_slower_costs_a_round_half_of_one_at_most(quorum: int, scale: float) -> None:
    seconds = {"a": scale, "b": 1.05 * scale, "c": 1.1 * scale, "d": 20.0 * scale}
    rounds = seconds_of_rounds(seconds, 60, quorum=quorum, lost_after_s=10_000.0)
    assert max(rounds) <= 1.5 * seconds["b"]


def test_a_worker_is_waited_for_if_that_pays() -> None:
    """Two pushes in 1.8 s are more than one in 1 s: it misses one round, the first."""
    rounds = seconds_of_rounds({"a": 1.0, "b": 1.8}, 30, quorum=1)
    assert rounds[0] == pytest.approx(1.25)
    assert rounds[3:] == pytest.approx([1.8] * 27)


def test_the_wait_that_pays_has_the_most_pushes_per_second() -> None:
    assert paying_s([], 1) is None
    assert paying_s([[1.0], [1.0], [1.0], [20.0]], 2) == 1.0
    assert paying_s([[1.0], [1.8]], 1) == 1.8
    # A quorum that the slow ones belong to waits for all that are about as slow.
    assert paying_s([[1.0], [1.0], [20.0], [20.5]], 3) == 20.5
    # One push of eight that was slow is no reason to wait.
    assert paying_s([[1.0] * 7 + [30.0], [1.1] * 8], 1) == 1.1
    # Fewer are known than needed: those that are.
    assert paying_s([[2.0], []], 2) == 2.0


def test_the_deadline_of_the_user_bounds_a_round() -> None:
    run = joined("a", "b", "c", quorum=2, round_timeout_s=10.0)
    run.push("a")
    run.wait(11.0, "a", "b", "c")
    assert run.phase == "open"
    (log,) = run.all(events.Log)
    assert log.text == "round 0 is open for 10 s and has 1 of 2 pushes; it stays open"
    run.push("b")
    assert run.all(events.Apply), "the deadline is over, and there is a quorum"


def test_enough_samples_close_a_round() -> None:
    run = joined("a", "b", "c", round_samples=10)
    run.push("a", samples=9)
    assert not run.all(events.Apply)
    run.push("b", samples=1)
    assert run.all(events.Apply)


def test_the_push_of_a_dead_worker_counts() -> None:
    run = joined("a", "b", quorum=2)
    run.push("a")
    run.wait(30.0, "b")
    assert run.phase == "open"
    run.push("b")
    assert len(run.one(events.Apply).shares) == 2


def test_a_joiner_is_waited_for() -> None:
    run = joined("a")
    run.join("b")
    run.push("a")
    assert not run.all(events.Apply)
    run.push("b")
    assert len(run.one(events.Apply).shares) == 2


def test_a_step_that_is_not_finite_is_skipped() -> None:
    run = joined("a")
    run.push("a")
    run.tell(events.Applied(is_finite=False))
    assert run.run.version == Version(1, 1)
    assert run.run.status(0.0).skipped == 1
    assert any(one.is_warning for one in run.all(events.Log))


@pytest.mark.parametrize("save_every", [1, 3])
def test_files_are_written_each_k_versions(save_every: int) -> None:
    run = joined("a", save_every=save_every, rounds=10)
    saved = []
    for _ in range(10):
        run.round("a")
        saved += [one.snapshot.version for one in run.all(events.Save)]
    assert saved == [*range(save_every, 10, save_every), 10]
    assert run.one(events.Ended) == events.Ended("all 10 rounds are done", False)
