"""What a worker costs that dies without a word: at most its lease, in one round, and nothing later."""

from __future__ import annotations

import pytest
from driven_run import DrivenRun, joined

from softs_fast.paramserver.rounds import events

LEASE_S, STEP_S = 5.0, 1.0
WORKERS = ["a", "b", "c", "d"]


def round_s(run: DrivenRun, *alive: str) -> float:
    """Have each worker push after its step; return the seconds until the round is closed."""
    began_s = run.now_s
    run.wait(STEP_S, *alive)
    for worker in alive:
        run.push(worker)
    while not run.all(events.Apply):
        run.wait(0.25, *alive)
        assert run.now_s < began_s + 100.0, run.text
    run.tell(events.Applied())
    return run.now_s - began_s


@pytest.mark.parametrize(("quorum", "n_alive"), [(1, 3), (3, 3), (2, 2)])
@pytest.mark.parametrize("n_before", [0, 1, 5, 25])
def test_dead_workers_cost_one_lease_once(quorum: int, n_alive: int, n_before: int) -> None:
    alive = WORKERS[:n_alive]
    run = joined(*WORKERS, world_size=4, quorum=quorum, lost_after_s=LEASE_S)
    for _ in range(n_before):
        assert round_s(run, *WORKERS) == STEP_S
    after = [round_s(run, *alive) for _ in range(30)]
    # A round that knows how long rounds take waits less than that.
    assert STEP_S < after[0] <= max(LEASE_S, STEP_S) + 0.25
    late = [seconds for seconds in after if seconds > STEP_S]
    assert sum(late) - STEP_S * len(late) <= LEASE_S, "more than one lease is lost"
    first_at_full_speed = after.index(STEP_S)
    assert after[first_at_full_speed:] == [STEP_S] * (30 - first_at_full_speed), "it is paid for again"
    assert run.tell(events.Seen("a")) == events.Noted()
    assert [one.worker_id for one in run.run.status(run.now_s).members] == alive


def test_a_quorum_that_the_dead_one_breaks_waits_and_says_so() -> None:
    run = joined(*WORKERS, world_size=4, quorum=4, lost_after_s=LEASE_S)
    run.wait(STEP_S, *WORKERS[:3])
    for worker in WORKERS[:3]:
        run.push(worker)
    run.wait(60.0, *WORKERS[:3])
    assert not run.all(events.Apply)
    assert run.text == "3 of 4 pushes are here; waits for more workers"
    # Another one that joins has its place.
    run.join("e")
    run.push("e")
    assert run.all(events.Apply)
