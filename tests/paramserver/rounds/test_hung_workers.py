"""What a worker costs that lives and does not train: its heartbeats say the same count again and again."""

from __future__ import annotations

from typing import Any

import pytest
from driven_run import DrivenRun, joined

from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.pace import hung_after_s

LEASE_S = 20.0


def run_with_a_hung_worker(**options: Any) -> DrivenRun:
    """Three workers, of which "c" computes for ever after its first pull."""
    run = joined("a", "b", "c", **{"quorum": 3, "lost_after_s": LEASE_S} | options)
    for worker in "abc":
        run.tell(events.Pull(worker))
        if options.get("dataset_size"):
            run.tell(events.Take(worker, 4, 1))
    return run


def beat(run: DrivenRun, seconds: float, progress: int = 7) -> list[events.Action]:
    """Let time pass in which "a" and "b" train and "c" sends heartbeats with the same count."""
    found: list[events.Action] = []
    end_s = run.now_s + seconds
    while run.now_s < end_s:
        found += run.wait(min(1.0, end_s - run.now_s), "a", "b")
        run.tell(events.Seen("c", progress))
        found += run.actions
    return found


@pytest.mark.parametrize("mode", ["bsp", "ssp", "async"])
def test_a_hung_worker_holds_up_no_run_for_ever(mode: str) -> None:
    """A strict round can still not close without it, but says why, and another worker may take its place."""
    run = run_with_a_hung_worker(mode=mode, max_lead=0, pushes_per_step=3, max_workers=4)
    beat(run, 1.0)
    for worker in "ab":
        run.push(worker)
        if run.all(events.Apply):
            run.tell(events.Applied())
    actions = beat(run, LEASE_S + 1.0)
    (log,) = (one for one in actions if isinstance(one, events.Log))
    assert log.is_warning
    assert log.text.startswith('worker "c" (rank 2) lives, but has made no progress for 2')
    assert [one for one in actions if isinstance(one, events.Changed)]
    assert run.phase == "apply" or run.text.endswith('; no progress of worker "c" (rank 2)')
    assert [one.state for one in run.run.status(run.now_s).members] == ["active", "active", "stalled"]
    if mode == "bsp":
        run.join("d")
        run.push("d")
        assert [one.push.worker_id for one in run.one(events.Apply).shares] == ["a", "b", "d"]
    elif mode == "ssp":
        assert run.tell(events.Pull("a", run.run.version)) != events.Hold()
    else:
        assert [one for one in actions if isinstance(one, events.Apply)]


def test_its_samples_go_to_others() -> None:
    run = run_with_a_hung_worker(dataset_size=12, epochs=1, quorum=1)
    beat(run, 1.0)
    for worker in "ab":
        run.push(worker, data=1)
    beat(run, 2.0)
    run.tell(events.Applied())
    beat(run, LEASE_S)
    assert isinstance(run.tell(events.Take("a", 4, 2)), events.Granted)
    assert run.tell(events.Take("b", 4, 2)) == events.Granted(())
    run.push("a", data=2)
    run.tell(events.Applied())
    assert run.phase == "done", "the last samples of the epoch were those of the hung worker"


def test_a_worker_that_makes_progress_is_waited_for() -> None:
    run = run_with_a_hung_worker()
    beat(run, 1.0)
    run.push("a")
    run.push("b")
    for progress in range(20):
        beat(run, LEASE_S / 2, progress)
    assert [one.state for one in run.run.status(run.now_s).members] == ["active"] * 3
    run.push("c")
    assert run.all(events.Apply)


def test_a_worker_takes_part_again_with_its_next_progress() -> None:
    run = run_with_a_hung_worker()
    beat(run, 1.0)
    run.push("a")
    run.push("b")
    beat(run, LEASE_S + 1.0)
    run.tell(events.Seen("c", 8))
    assert [one.text for one in run.all(events.Log)] == ['worker "c" (rank 2) makes progress again']
    assert 'waits for worker "c" (rank 2)' in run.text
    run.push("c")
    assert len(run.one(events.Apply).shares) == 3


def test_before_any_push_there_is_no_measure() -> None:
    run = run_with_a_hung_worker()
    assert not [one for one in beat(run, 1000.0) if isinstance(one, events.Log)]


def test_a_worker_that_waits_for_others_does_not_hang() -> None:
    run = run_with_a_hung_worker()
    beat(run, 1.0)
    run.push("c")
    run.tell(events.Pull("c", run.run.version))
    run.push("a")
    assert not [one for one in beat(run, 500.0) if isinstance(one, events.Log)]


def test_ten_times_the_longest_push_is_long() -> None:
    assert hung_after_s([[1.0, 2.0], [], [3.0]], LEASE_S) == 30.0
    assert hung_after_s([[1.0]], LEASE_S) == LEASE_S
