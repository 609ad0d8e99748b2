"""Jobs of real processes: ranks and suppliers that are killed, and ranks that join, change no number and no weight."""

from __future__ import annotations

import logging
import random
import signal
from collections import Counter
from collections.abc import Callable

import pytest
import torch

import softs_fast as sf

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from coordinator_process import Cluster
from live_job import GLOBAL, MICRO, WIDTH, LiveJob, Student, has, live_data, replayed, supplier

ELASTIC = ("--min-workers", "1", "--max-workers", "4", "--form-timeout", "0.5")


def check(job: LiveJob) -> None:
    """All ranks that live have ended with the weights of an undisturbed run with the same sizes, to the bit."""
    ends = [one.ended() for one in job.ranks if not one.was_killed]
    sizes = job.recount()
    [weights] = {tuple(end["weights"]) for end in ends}
    print(f"sizes {sizes}")
    student = replayed(sizes)
    assert [end["loss"] for end in ends] == pytest.approx([student.mean_loss] * len(ends), rel=1e-4)
    assert weights == tuple(student.weights())


@pytest.mark.timeout(240)
def test_a_rank_and_a_supplier_are_killed_and_a_rank_joins(live_job: Callable[..., LiveJob]) -> None:
    """Two ranks, then one, then two; meanwhile one of two suppliers dies. All numbers are trained once."""
    job = live_job(30, "--min-workers", "1", "--max-workers", "2", "--form-timeout", "0.5")
    job.allow(0)
    first, second = job.start(), job.start()
    job.coordinator.status(has(2))
    job.allow(10)
    second.until(10)
    # Both are in the midst of a step.
    second.kill()
    job.coordinator.status(has(1))
    job.allow(20)
    first.until(20)
    job.kill_supplier()
    job.start()
    job.coordinator.status(has(2))
    job.allow(30)
    check(job)
    sizes = job.sizes()
    assert (sizes[9], sizes[19], sizes[29]) == (2, 1, 2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("writes", [False, True])
def test_a_step_that_comes_again_has_the_samples_that_it_had(
    broker: None,
    frontend: str,
    backend: str,
    cluster: Cluster,
    writes: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """J8: none is made a second time; if the program has written into them, they are made as they were."""
    caplog.set_level(logging.INFO, "softs_fast.job.step")
    made: Counter[int] = Counter()

    def make(number: int) -> torch.Tensor:
        made[number] += 1
        return torch.full((WIDTH,), number + 1.0)

    fails_after, student = [11, 7, 3], Student(0)
    state = sf.TrainingState(student.model, student.optimizer)
    coordinator = cluster.coordinator("--job", "digits", "--world-size", "1").address
    with (
        supplier(backend, make),
        sf.Job("digits", live_data(frontend), state, coordinator=coordinator) as job,
    ):
        for step in job.steps(3):
            first: dict[str, torch.Tensor] = {}
            try:
                with step:
                    for n_taken, batch in enumerate(step.batches(), 1):
                        assert (batch["x"][:, 0] == batch["number"] + 1).all()
                        first = first or batch
                        # Of one step at most.
                        assert job._parts is not None
                        assert len(job._parts._taken) <= GLOBAL // MICRO
                        step.backward(student.loss(batch))
                        if step.number == 2 and fails_after and n_taken == fails_after[-1]:
                            raise ValueError("in the midst of a step")
            except ValueError:
                fails_after.pop()
                if writes:
                    first["x"].zero_()
    assert not fails_after
    assert writes or {made[number] for number in range(3 * GLOBAL)} == {1}
    told = [record.args for record in caplog.records if "still trains" in record.getMessage()]
    assert len(told) == 3
    assert writes or all(kept == n for kept, n in told)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_ranks_that_wait_for_samples_learn_of_a_death(live_job: Callable[..., LiveJob]) -> None:
    """There is no supplier when a rank dies; there are some later, which are all killed and replaced."""
    job = live_job(20, *ELASTIC, n_suppliers=0)
    ranks = [job.start() for _ in range(3)]
    job.coordinator.status(lambda status: has(3)(status) and all(one.step == 1 for one in status.seats))
    ranks[1].kill()
    # They end their step, although no sample of it has come.
    assert [one.drops()["taken"] for one in (ranks[0], ranks[2])] == [[], []]
    job.coordinator.status(has(2))
    job.allow(10)
    job.start_supplier()
    ranks[0].until(10)
    job.kill_supplier()
    job.allow(20)
    job.start_supplier()
    check(job)
    assert set(job.sizes()) == {2}


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_coordinator_that_is_killed_changes_nothing(live_job: Callable[..., LiveJob]) -> None:
    job = live_job(30, "--world-size", "2")
    job.allow(10)
    first, _ = job.start(), job.start()
    first.until(10)
    job.coordinator.signal(signal.SIGKILL)
    job.allow(30)
    check(job)
    assert set(job.sizes()) == {2}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_random_kills(live_job: Callable[..., LiveJob], seed: int) -> None:
    """Twelve kills of ranks and suppliers, and joins, at steps of chance."""
    chance = random.Random(seed)
    job = live_job(10**6, *ELASTIC)
    alive = [job.start() for _ in range(chance.randint(2, 4))]
    last = 0
    kinds: list[str] = []
    for _ in range(12):
        last += chance.randint(1, 6)
        # Ranks are in the midst of a step, or wait for its samples.
        job.allow(last + chance.randint(0, 2))
        # It has the weights, so others may be killed.
        watched = chance.choice(job.with_step(last, alive))
        kinds.append(chance.choice(["rank", "rank", "supplier", "join"]))
        if kinds[-1] == "supplier":
            job.start_supplier()
            job.kill_supplier()
        elif kinds[-1] == "rank" and len(alive) > 1:
            victim = chance.choice([one for one in alive if one is not watched])
            alive.remove(victim)
            victim.kill()
        elif len(alive) < 4:
            alive.append(job.start())
    job.coordinator.status(has(len(alive)))
    job.n_steps = last + 5
    job.allow(job.n_steps)
    for one in alive:
        one.until(job.n_steps)
    for one in job.ranks:
        one.kill()
    sizes = job.recount()
    print(f"seed {seed}: {kinds}, sizes {sizes}")
    assert {one.committed[job.n_steps]["digest"] for one in alive} == {replayed(sizes).digest()}
