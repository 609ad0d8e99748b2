"""A worker that comes and goes costs the others ever less of their time: in virtual time."""

from __future__ import annotations

from driven_job import DrivenJob, open_job

from softs_fast.coordination.job.cooldown import Cooldown
from softs_fast.coordination.job.messages import Fence, Ready, Table, WorkerState


def test_a_seat_cools_down_twice_as_long_each_time_up_to_a_bound() -> None:
    cooldown, now_s, waits = Cooldown(), 0.0, []
    for _ in range(1200):
        cooldown.enter(now_s, 1)
        waits.append(cooldown.left_s(now_s, 1))
        now_s += 1.0
    assert waits[:5] == [0.0, 2.0, 4.0, 8.0, 16.0]
    assert max(waits) == waits[-1] == 300.0
    assert cooldown.left_s(now_s, 2) == 0.0
    assert cooldown.left_s(now_s + 300.0, 1) == 0.0
    cooldown.enter(now_s + 600.0, 1)
    assert cooldown.left_s(now_s + 600.0, 1) == 0.0


def run(job: DrivenJob, seconds: float, *names: str) -> None:
    """Let time pass, and have workers give up their engines when they are told."""
    end_s = job.now_s + seconds
    while job.now_s < end_s:
        for name in names:
            news = [one for one in job.said.get(job.conns[name], []) if isinstance(one, (Table, Fence))]
            if news and isinstance(news[-1], Fence) and news[-1].epoch == job.status.epoch:
                job.ready(name)
        job.wait(0.1)


def restart(job: DrivenJob, name: str, incarnation: int) -> None:
    """Have a worker die, and a new process of it begin."""
    job.gone(name)
    job.wait(0.1)
    job.hello(name, incarnation)
    job.ready(name)


def members(job: DrivenJob) -> list[str]:
    return [member.worker_id for member in job.last("a", Table).members]


def test_others_train_while_one_comes_and_goes() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3)
    for incarnation in range(2, 1000):
        restart(job, "c", incarnation)
        while "c" not in members(job) and job.now_s < 600.0:
            run(job, 0.1, "a", "b")
            assert members(job)[:2] == ["a", "b"]
        # It lives for a second.
        run(job, 1.0, "a", "b")
        if job.now_s >= 600.0:
            break
    # Without a cool-down there are 531 epochs.
    assert 10 < job.status.epoch <= 24
    assert "in cool-down for" in job.status.seats[2].text


def test_a_job_that_is_too_small_without_it_waits_for_no_cooldown() -> None:
    job = open_job("a", "b")
    for incarnation in range(2, 8):
        restart(job, "b", incarnation)
        job.ready("a")
        assert job.status.phase == "open"


def test_workers_that_may_have_the_weights_are_never_left_out() -> None:
    job = open_job("a", "b", "c", min_workers=1, max_workers=3)
    for incarnation in (2, 3, 4):
        restart(job, "c", incarnation)
        run(job, 5.0, "a", "b")
    assert members(job) == ["a", "b", "c"]
    # It cools down for 8 s, and has the weights: it stays in when another one is lost.
    job.gone("b")
    run(job, 2.5, "a", "c")
    assert members(job) == ["a", "c"]


def test_members_that_keep_nothing_and_stay_do_not_cool_down() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3)
    for incarnation in (2, 3, 4, 5):
        job.gone("c")
        job.wait(0.1)
        job.hello("c", incarnation)
        for name in "abc":
            # As a Membership, which is no survivor of any epoch.
            told = [one for one in job.said.get(job.conns[name], []) if isinstance(one, Table)]
            job.say(name, Ready(WorkerState(), 77 if told else 0, told[-1].epoch if told else 0))
        job.wait(10.0)
        assert members(job)[:2] == ["a", "b"]
    named = {line.partition(" enters")[0] for line in job.log if " enters an epoch for the " in line}
    assert named == {'seat 2 ("c")'}
