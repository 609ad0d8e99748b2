"""What the status says of a training on live samples, from the reports in the steps of its members."""

from __future__ import annotations

import pytest
from driven_job import DrivenJob, open_job

from softs_fast.coordination.job.messages import Report, Saved, Step


def tell(job: DrivenJob, name: str, step: int, **report: float | Saved | None) -> None:
    """Report what a member has done since the job began."""
    given = {"n_samples": 0, "waiting_s": 0.0, "elapsed_s": job.now_s} | report
    job.say(name, Step(job.status.epoch, step, Report(**given)))  # type: ignore[arg-type]


def test_rates_are_those_of_the_last_seconds() -> None:
    job = open_job("a", "b")
    assert (job.status.samples_per_s, job.status.starvation) == (0, 0)
    # One second of slow steps, and then fast ones of which "b" waits for samples half of the time.
    for second in range(31):
        n_fast = max(0, second - 1)
        tell(job, "a", second + 1, n_samples=2 * second + 98 * n_fast)
        tell(job, "b", second + 1, n_samples=second + 49 * n_fast, waiting_s=0.5 * n_fast)
        job.wait(1)
    assert job.status.samples_per_s == pytest.approx(150)
    assert job.status.starvation == pytest.approx(0.5)
    assert [one.starvation for one in job.status.seats] == pytest.approx([0.0, 0.5])
    # Nothing follows of a member that reports once.
    other = open_job("a")
    other.wait(3)
    tell(other, "a", 1, n_samples=7, waiting_s=1.0)
    assert (other.status.samples_per_s, other.status.starvation) == (0, 0)


def test_ranks_that_the_others_wait_for() -> None:
    job = open_job("a", "b", "c")
    for name in ("a", "b", "c"):
        tell(job, name, 5)
    assert job.status.reason == "in step 5"
    tell(job, "b", 5, lacks_s=1.5)
    job.wait(2)
    assert job.status.reason == 'in step 5; the others wait for seat 1 ("b"): it waits for samples'
    assert [one.text for one in job.status.seats] == ["member", "member, waits for samples for 4 s", "member"]
    tell(job, "b", 5, lacks_s=3.5)
    tell(job, "a", 5, lacks_s=1.0)
    assert (
        job.status.reason
        == 'in step 5; the others wait for seat 0 ("a"), seat 1 ("b"): they wait for samples'
    )
    tell(job, "c", 5, lacks_s=1.0)
    assert job.status.reason == "in step 5; all members wait for samples"
    tell(job, "c", 6)
    tell(job, "b", 6)
    assert job.status.reason == 'in step 6; the others wait for seat 0 ("a"): it waits for samples'
    # It would have said so again.
    job.wait(3.5)
    assert job.status.reason == "in step 6"
    assert job.status.seats[0].text == "member"


def test_the_last_checkpoint_outlives_its_writer_and_its_epoch() -> None:
    job = open_job("a", "b", min_workers=1, max_workers=2)
    assert job.status.saved is None
    tell(job, "a", 41, saved=Saved(40, 2.0, 0.5))
    job.wait(1)
    assert job.status.saved == Saved(40, 3.0, 0.5)
    job.gone("a")
    job.wait(5)
    job.ready("b", 41)
    job.wait(5)
    assert job.status.size == 1
    tell(job, "b", 42)
    assert job.status.saved == Saved(40, 13.0, 0.5)
    # A worker that has an older one reports later; and one that has begun anew is newer, if of an earlier step.
    tell(job, "b", 43, saved=Saved(20, 100.0, 0.5))
    assert job.status.saved.step == 40
    tell(job, "b", 44, saved=Saved(20, 1.0, 0.5))
    assert job.status.saved == Saved(20, 1.0, 0.5)


def test_an_epoch_begins_without_rates() -> None:
    job = open_job("a", "b", min_workers=1, max_workers=2)
    for second in range(3):
        tell(job, "a", second + 1, n_samples=10 * second)
        job.wait(1)
    assert job.status.samples_per_s == 10
    job.gone("b")
    job.wait(5)
    job.ready("a", 3)
    job.wait(5)
    assert (job.status.size, job.status.samples_per_s) == (1, 0)
