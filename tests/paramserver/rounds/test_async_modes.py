"""Steps without rounds: bounded lead, and buffers with bounded age."""

from __future__ import annotations

import math

from driven_run import DrivenRun, joined

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.events import Version


def stepped(run: DrivenRun, worker: str) -> None:
    assert isinstance(run.push(worker), events.Counted)
    assert run.all(events.Apply)
    run.tell(events.Applied())


def test_each_push_is_a_step() -> None:
    run = joined("a", "b", mode="ssp", max_lead=1)
    run.push("a", samples=4)
    step = run.one(events.Apply)
    assert [(one.push.worker_id, one.weight) for one in step.shares] == [("a", 1.0)]
    assert step.rate_factor == 1.0
    run.push("b")
    assert not run.all(events.Apply)
    run.tell(events.Applied())
    assert run.one(events.Apply).version == Version(1, 1)


def test_a_pull_waits_for_the_slowest() -> None:
    run = joined("a", "b", mode="ssp", max_lead=1)
    stepped(run, "a")
    assert isinstance(run.tell(events.Pull("a", Version(1, 0))), events.Serve)
    stepped(run, "a")
    assert run.tell(events.Pull("a", Version(1, 1))) == events.Hold()
    # The push of b is counted, and not in the weights yet.
    run.push("b")
    assert run.tell(events.Pull("a", Version(1, 1))) == events.Hold()
    run.tell(events.Applied())
    assert run.all(events.Changed)
    assert run.tell(events.Pull("a", Version(1, 1))) == events.Serve(Version(1, 3))


def test_no_push_of_an_active_worker_is_too_old() -> None:
    run = joined("a", "b", mode="ssp", max_lead=9)
    for _ in range(9):
        stepped(run, "a")
    assert isinstance(run.push("b", Version(1, 0)), events.Counted)


def test_a_worker_reads_its_own_push() -> None:
    run = joined("a", mode="ssp", max_lead=5)
    run.push("a")
    assert run.tell(events.Pull("a")) == events.Hold()
    run.tell(events.Applied())
    assert run.tell(events.Pull("a")) == events.Serve(Version(1, 1))


def test_a_dead_worker_is_not_waited_for() -> None:
    run = joined("a", "b", mode="ssp")
    stepped(run, "a")
    assert run.tell(events.Pull("a", Version(1, 0))) == events.Hold()
    actions = run.wait(20.5, "a")
    assert [one for one in actions if isinstance(one, events.Changed)]
    assert isinstance(run.tell(events.Pull("a", Version(1, 0))), events.Serve)


def test_a_worker_that_was_away_pulls_first() -> None:
    run = joined("a", "b", mode="ssp", max_lead=1)
    run.wait(21.0, "a")
    for _ in range(3):
        stepped(run, "a")
    answer = run.push("b", Version(1, 0))
    assert isinstance(answer, events.Stale)
    assert (answer.timeline, answer.version) == (1, 3)
    assert "was away" in answer.message
    # It does not hold up the others.
    assert isinstance(run.tell(events.Pull("a", Version(1, 2))), events.Serve)
    assert run.tell(events.Pull("b", Version(1, 0))) == events.Serve(Version(1, 3))
    assert isinstance(run.push("b"), events.Counted)


def test_a_joiner_begins_with_the_least_clock() -> None:
    run = joined("a", mode="ssp", max_lead=0)
    for _ in range(5):
        stepped(run, "a")
    run.tell(events.Join("b", "b"))
    stepped(run, "a")
    run.tell(events.Seen("b"))
    stepped(run, "a")
    assert run.tell(events.Pull("a", Version(1, 6))) == events.Hold()
    stepped(run, "b")
    assert isinstance(run.tell(events.Pull("a", Version(1, 6))), events.Serve)


def test_a_buffer_is_weighted_by_age() -> None:
    run = joined("a", "b", "c", mode="async", pushes_per_step=2, max_age=5)
    run.push("a")
    assert run.push("b") == events.Counted(2, 2)
    run.tell(events.Applied())
    run.push("c", Version(1, 0), samples=3)
    run.push("a", Version(1, 1), samples=1)
    step = run.one(events.Apply)
    assert [(one.push.worker_id, one.weight) for one in step.shares] == [("c", 3 / math.sqrt(2)), ("a", 1)]
    assert step.divisor == 4
    assert step.rate_factor == 1.0


def test_what_is_too_old_is_refused() -> None:
    run = joined("a", "b", mode="async", pushes_per_step=1, max_age=1)
    stepped(run, "a")
    stepped(run, "a")
    answer = run.push("b", Version(1, 0))
    assert isinstance(answer, events.Stale)
    assert answer.message == "version 1.0 is 2 versions old; 1 are allowed"
    assert isinstance(run.push("b", Version(1, 1)), events.Counted)


def test_a_buffer_that_cannot_fill_is_used() -> None:
    """Each worker pushes once for a version, so a buffer for more pushes than workers would wait for ever."""
    run = joined("a", "b", mode="async", pushes_per_step=4)
    run.push("a")
    assert not run.all(events.Apply)
    run.push("b")
    assert len(run.one(events.Apply).shares) == 2


def test_pushes_during_a_step_wait_for_the_next() -> None:
    run = joined("a", "b", "c", mode="async", pushes_per_step=1)
    run.push("a")
    run.push("b")
    assert not run.all(events.Apply)
    run.tell(events.Applied())
    assert [one.push.worker_id for one in run.one(events.Apply).shares] == ["b"]


def test_a_stop_applies_what_counts() -> None:
    run = joined("a", "b", "c", mode="ssp", max_lead=3)
    for worker in "abc":
        run.push(worker)
    run.tell(events.Stop("enough"))
    for _ in range(3):
        assert not run.run.is_over
        run.tell(events.Applied())
    assert run.run.is_over
    assert run.run.version.number == 3
