"""A job of one process: numbers, weights, random numbers; and what it says of steps and samples that are not right."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import ranks
import torch
from live_job import GLOBAL, MICRO, Student, live_data, replayed, sample, supplier, train

import softs_fast as sf
from softs_fast.job.feed import Feed
from softs_fast.job.step import Parts


@contextmanager
def job_alone(frontend: str) -> Iterator[tuple[sf.Job, Student]]:
    """A job of this process."""
    student = Student(0)
    state = sf.TrainingState(student.model, student.optimizer)
    with sf.Job("digits", live_data(frontend), state, seed=5) as job:
        yield job, student


def train_without_grpc(say: Callable[[Any], None], rank: int, size: int, options: dict[str, Any]) -> None:
    """Train where gRPC cannot be imported."""
    sys.modules["grpc"] = None  # type: ignore[assignment]
    train(say, rank, size, options)


def test_it_trains_each_number_once_without_grpc_and_with_the_bits_of_a_replay(
    broker: None, frontend: str, backend: str
) -> None:
    """J5, J13."""
    n_steps = 5
    options = {"frontend": frontend, "coordinator": None, "seed": 0, "n_steps": n_steps}
    with supplier(backend), ranks.start(train_without_grpc, 1, options) as running:
        said = [running.receive(0) for _ in range(n_steps + 1)]
        # It has closed its client when it returns.
        assert running.receive(0) is None
    assert not isinstance(said[0], ranks.Raised), said[0].trace
    taken = [number for one in said[:-1] for number in one["taken"]]
    assert taken == list(range(n_steps * GLOBAL))
    assert said[-1]["weights"] == replayed([1] * n_steps).weights()


def test_a_step_that_fails_comes_again_with_the_same_samples(
    broker: None, frontend: str, backend: str
) -> None:
    n_failures = 2
    with supplier(backend), job_alone(frontend) as (job, student):
        for step in job.steps(3):
            taken: list[int] = []
            try:
                with step:
                    for batch in step.batches():
                        taken += batch["number"].tolist()
                        step.backward(student.loss(batch))
                        if step.number == 2 and n_failures and len(taken) == 3 * n_failures * MICRO:
                            raise ValueError("in the midst of a step")
            except ValueError:
                n_failures -= 1
                assert not step.is_committed
                continue
            first = (step.number - 1) * GLOBAL
            assert taken == list(step.numbers) == list(range(first, first + GLOBAL))
        assert student.weights() == replayed([1] * 3).weights()
        assert job.committed == 3
    assert n_failures == 0


def test_a_sample_that_cannot_be_made(broker: None, frontend: str, backend: str) -> None:
    def fails(number: int) -> torch.Tensor:
        if number == 5:
            raise ValueError("no such text")
        return sample(number)

    taken: list[int] = []

    def train_step(job: sf.Job, student: Student) -> None:
        with next(job.steps(1)) as step:
            for batch in step.batches():
                taken.extend(batch["number"].tolist())
                step.backward(student.loss(batch))

    with supplier(backend, fails), job_alone(frontend) as (job, student):
        with pytest.raises(sf.GeneratorFailed, match="no such text"):
            train_step(job, student)
        assert taken == [0, 1, 2, 3]
        assert job.committed == 0


def test_a_mean_of_losses_that_a_device_refuses_is_told_and_the_next_step_begins(
    broker: None, frontend: str, backend: str
) -> None:
    class Refused(torch.Tensor):
        def __mul__(self, *args: Any) -> torch.Tensor:  # type: ignore[override]
            raise RuntimeError("device-side assert")

    def train_step(job: sf.Job, student: Student, kind: type[torch.Tensor]) -> None:
        with next(job.steps(2)) as step:
            step._losses = step._losses.as_subclass(kind)
            for batch in step.batches():
                step.backward(student.loss(batch))

    with supplier(backend, sample), job_alone(frontend) as (job, student):
        with pytest.raises(RuntimeError, match="device-side assert"):
            train_step(job, student, Refused)
        assert job.committed == 1
        train_step(job, student, torch.Tensor)
        assert job.committed == 2


def leave_out_a_loss(step: Any, student: Student) -> None:
    for batch in step.batches():
        if batch["number"][0]:
            step.backward(student.loss(batch))


def leave_out_a_batch(step: Any, student: Student) -> None:
    step.backward(student.loss(next(step.batches())))


def give_two_losses(step: Any, student: Student) -> None:
    for batch in step.batches():
        step.backward(student.loss(batch))
        step.backward(student.loss(batch))


def give_losses_of_samples(step: Any, student: Student) -> None:
    for batch in step.batches():
        step.backward(student.loss(batch).reshape(1))


def give_complex_losses(step: Any, student: Student) -> None:
    for batch in step.batches():
        step.backward(student.loss(batch) * 1j)


def begin_gradients_anew(step: Any, student: Student) -> None:
    for batch in step.batches():
        student.optimizer.zero_grad()
        step.backward(student.loss(batch))


def drop_gradients_at_the_end(step: Any, student: Student) -> None:
    for batch in step.batches():
        step.backward(student.loss(batch))
    student.optimizer.zero_grad()


def apply_gradients(step: Any, student: Student) -> None:
    for batch in step.batches():
        step.backward(student.loss(batch))
        student.optimizer.step()


def begin_another_step(step: Any, student: Student) -> None:
    with step:
        pass


def train_nothing(step: Any, student: Student) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (leave_out_a_loss, "step 1 has the gradients of 0 of 1 micro-batches"),
        (leave_out_a_batch, "step 1 has the gradients of 1 of 11 micro-batches"),
        (give_two_losses, "is called another time"),
        (give_losses_of_samples, r"a loss must be one real number, a tensor of shape \[\], got shape \[1\]"),
        (give_complex_losses, r"a loss must be one real number.*got shape \[\] of torch\.complex64"),
        (begin_gradients_anew, "the gradients of 1 micro-batches of step 1 are gone: call no zero_grad"),
        (drop_gradients_at_the_end, "the gradients of 11 micro-batches of step 1 are gone"),
        (apply_gradients, r"leave optimizer\.step\(\) out"),
        (begin_another_step, "a step begins in another one"),
        (train_nothing, "step 1 has the gradients of 0 of 11 micro-batches"),
    ],
)
def test_a_step_without_all_of_its_gradients_is_not_applied(
    broker: None, frontend: str, backend: str, body: Callable[[Any, Student], None], text: str
) -> None:
    with supplier(backend), job_alone(frontend) as (job, student):
        before = student.weights()
        for step in job.steps(1):
            with pytest.raises(sf.ConfigError, match=text), step:
                body(step, student)
            break
        assert student.weights() == before
        assert all(parameter.grad is None for parameter in student.model.parameters())
        assert job.committed == 0


def test_what_ends_a_step_between_a_batch_and_its_count_shifts_no_number(
    broker: None, frontend: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does: the stream has handed a batch out then, and the feed has not taken it."""
    taken: list[int] = []
    with supplier(backend), job_alone(frontend) as (job, student):
        took, has_failed = Feed.took, False

        def ends_once(feed: Feed) -> Any:
            nonlocal has_failed
            if job.committed == 1 and not has_failed:
                has_failed = True
                raise KeyboardInterrupt
            return took(feed)

        monkeypatch.setattr(Feed, "took", ends_once)
        while job.committed < 3:
            with suppress(KeyboardInterrupt):
                for step in job.steps(3):
                    with step:
                        numbers = []
                        for batch in step.batches():
                            numbers += batch["number"].tolist()
                            step.backward(student.loss(batch))
                    taken += numbers
    assert has_failed
    assert taken == list(range(3 * GLOBAL))


@pytest.mark.parametrize(("owner", "name"), [(Feed, "took"), (Parts, "_wait")])
def test_an_error_between_a_batch_and_its_count_that_the_block_takes(
    broker: None, frontend: str, backend: str, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """As of a handler of a signal: the step goes on where its count is, whether it has the batch still or not."""
    done, n_calls = getattr(owner, name), 0

    def ends_once(self: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3 and owner is Feed:
            raise TimeoutError
        result = done(self)
        if n_calls == 3:
            raise TimeoutError
        return result

    monkeypatch.setattr(owner, name, ends_once)
    with supplier(backend), job_alone(frontend) as (job, student):
        for step in job.steps(2):
            taken: list[int] = []
            with step:
                for _ in range(2):
                    with suppress(TimeoutError):
                        for batch in step.batches():
                            taken += batch["number"].tolist()
                            step.backward(student.loss(batch))
            assert taken == list(step.numbers)
    assert n_calls == 2 * GLOBAL // MICRO + 1


def test_a_step_that_was_applied_in_part_is_not_made_again(broker: None, frontend: str, backend: str) -> None:
    def apply_in_part() -> None:
        student.optimizer.step()
        raise ValueError("the disk is full")

    student = Student(0)
    state = sf.TrainingState(student.model, student.optimizer, apply=apply_in_part)

    def make_step(job: sf.Job) -> None:
        for step in job.steps(1):
            with step:
                for batch in step.batches():
                    step.backward(student.loss(batch))

    with supplier(backend), sf.Job("digits", live_data(frontend), state) as job:
        with pytest.raises(ValueError, match="the disk is full"):
            make_step(job)
        with pytest.raises(
            sf.ConfigError, match="the weights are not valid any more: step 1 could not be applied"
        ):
            make_step(job)


def test_a_job_runs_once(frontend: str) -> None:
    with job_alone(frontend) as (job, _):
        pass
    with pytest.raises(sf.ConfigError, match="this job has run"), job:
        pass


def test_a_step_without_its_block(frontend: str) -> None:
    with (
        job_alone(frontend) as (job, _),
        pytest.raises(sf.ConfigError, match="must be in a block `with step:`"),
    ):
        for _ in job.steps(1):
            pass


def test_ranks_without_a_micro_batch_are_told(caplog: pytest.LogCaptureFixture, frontend: str) -> None:
    with job_alone(frontend) as (job, _):
        parts: Parts = job._parts
        for _ in range(2):
            parts.tell_place(rank=13, size=14, n_micro_batches=12, own=0)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text[:48] for text in told] == ["a step has 12 micro-batches, and the job 14 rank"]
    assert "2 of them only wait" in told[0]
