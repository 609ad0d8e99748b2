"""The weights with which a training goes on: its own, and those of a survivor while there is one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from driven_job import DrivenJob, open_job

from softs_fast.coordination.job import events
from softs_fast.coordination.job.messages import Fault, Member, Ready, Table, WorkerState
from softs_fast.coordination.job.rolling import copying, part_of, resume

EARLIER = 99


def of_earlier(job: DrivenJob, name: str, epoch: int, committed: int) -> None:
    """Have a worker of an earlier training wait for a table."""
    state = WorkerState(EARLIER, epoch, committed)
    job.hello(name, last=state)
    job.say(name, Ready(state))


# --- Trainings that share nothing but the name of the job ---


@pytest.mark.parametrize("epoch", [1, 40, (1 << 53) - 1])
@pytest.mark.parametrize("committed", [100, 9000])
def test_a_worker_of_an_earlier_training_takes_over_the_weights_of_this_one(
    epoch: int, committed: int
) -> None:
    job = open_job("a", "b", max_workers=3)
    of_earlier(job, "c", epoch, committed)
    job.wait(1.0)
    for name in ("a", "b"):
        job.ready(name, 5000)
    table = job.last("c", Table)
    assert (table.resume_step, table.source_rank, table.survivors) == (5000, 0, (0, 1))
    assert table.epoch < 1 << 50, "many more epochs have numbers"
    assert (
        f'seat 2 ("c") comes from another training, with {committed} steps of its epoch {epoch};'
        in job.log[-2]
    )


def test_a_worker_of_an_earlier_training_takes_over_an_epoch_that_was_not_used() -> None:
    job = open_job("a", "b", max_workers=3, away_s=None)
    job.hello("c")
    job.ready("c")
    job.wait(1.0)
    for name in ("a", "b"):
        job.ready(name, 7)
    assert job.status.epoch == 2
    # No member had an engine of epoch 2, so all have the state of epoch 1.
    job.gone("c")
    job.wait(0.1)
    of_earlier(job, "d", 40, 100)
    for name in ("a", "b"):
        job.say(name, Ready(WorkerState(77, 1, 7), 77, 2))
    job.wait(10.0)
    table = job.last("d", Table)
    assert (table.resume_step, table.survivors) == (7, (0, 1))


def test_a_coordinator_that_was_started_again_knows_its_training() -> None:
    job = open_job("a", "b", max_workers=3)
    again = DrivenJob(2, 3, records=[events.Booted("job", 55), *job.job.records()])
    for name in ("a", "b"):
        again.hello(name, engine_boot=77, engine_epoch=1)
    of_earlier(again, "c", 40, 100)
    again.wait(1.0)
    for name in ("a", "b"):
        again.say(name, Ready(WorkerState(55, 1, 7), 77, 1))
    again.wait(3.0)
    assert again.last("c", Table).resume_step == 7
    assert events.Booted("job", 55) in again.job.records()


def test_without_a_state_file_the_state_of_most_workers_counts() -> None:
    job = DrivenJob(3)
    for name in ("a", "b"):
        job.hello(name)
        job.say(name, Ready(WorkerState(5, 3, 60)))
    of_earlier(job, "c", 40, 100)
    table = job.last("a", Table)
    assert (table.resume_step, table.survivors) == (60, (0, 1))
    assert job.records == [events.Booted("job", 5), events.Agreed(()), table], (
        "it is of this training from now on"
    )


def test_a_worker_of_an_earlier_training_counts_without_another_one() -> None:
    job = DrivenJob(2)
    of_earlier(job, "a", (1 << 53) - 1, 100)
    job.hello("b")
    job.ready("b")
    table = job.last("b", Table)
    assert (table.epoch, table.resume_step, table.survivors) == (1, 100, (0,))
    for name in ("a", "b"):
        job.hello(name, last=WorkerState(77, 1, 100), engine_boot=77, engine_epoch=1)
        assert job.last(name, Table) == table


STATES = {
    "own": WorkerState(1, 4, 60),
    "own, before": WorkerState(1, 3, 50),
    "other": WorkerState(2, 40, 90),
    "none": WorkerState(0, 0, 70),
}


@pytest.mark.parametrize(
    ("names", "source", "checkpoint_step"),
    [
        (("other", "own, before", "own", "none"), "own", 0),
        (("other", "own, before", "none"), "own, before", 0),
        (("other", "own, before"), None, 55),
        (("other", "none"), "other", 0),
        (("other", "none"), None, 95),
        (("none",), "none", 0),
    ],
)
def test_which_state_counts(names: tuple[str, ...], source: str | None, checkpoint_step: int) -> None:
    states: Mapping[int, WorkerState] = {rank: STATES[name] for rank, name in enumerate(names)}
    way = resume(states, (1, 4), checkpoint_step, own=[1])
    assert way.source == (None if source is None else names.index(source))
    assert way.step == (checkpoint_step if source is None else STATES[source].committed)


# --- Epochs that would begin without a survivor ---


def two_of_four_are_replaced(form_timeout_s: float) -> DrivenJob:
    job = open_job(
        "a", "b", "c", "d", min_workers=2, max_workers=4, away_s=None, form_timeout_s=form_timeout_s
    )
    job.begin("a", 121)
    for name in ("b", "c"):
        job.gone(name)
    job.wait(0.06)
    for name in ("b", "c"):
        job.hello(name, 2)
        job.ready(name)
    return job


@pytest.mark.parametrize("form_timeout_s", [3.0, 30.0])
def test_survivors_that_are_slow_are_waited_for(form_timeout_s: float) -> None:
    """Such as in an optimizer's step of 14 s, or a connect of 5 s."""
    job = two_of_four_are_replaced(form_timeout_s)
    job.wait(form_timeout_s + 5)
    assert job.status.phase == "fenced"
    assert job.status.reason.startswith(
        "2 workers are ready, but none that can be a member has the weights of the epoch before; waiting for "
        'seat 0 ("a"), which is not ready, seat 3 ("d"), which is not ready'
    )
    job.ready("d", 120)
    table = job.last("b", Table)
    assert [member.worker_id for member in table.members] == ["b", "c", "d"]
    assert (table.resume_step, table.source_rank) == (120, 2)


def test_survivors_that_are_gone_are_not_waited_for() -> None:
    job = two_of_four_are_replaced(3.0)
    job.wait(4)
    job.gone("a")
    job.wait(0.06)
    assert job.status.phase == "fenced"
    job.gone("d")
    job.wait(0.06)
    assert [member.worker_id for member in job.last("b", Table).members] == ["b", "c"]
    assert "steps 1 to 120 are lost: no worker has their weights any more, and no checkpoint" in job.log


def test_a_seat_that_is_kept_is_waited_for() -> None:
    job = open_job("a", "b", min_workers=1, max_workers=2, away_s=5.0, form_timeout_s=1.0)
    job.gone("a")
    job.gone("b")
    job.wait(0.1)
    job.hello("b", 2)
    job.ready("b")
    job.wait(4.5)
    assert job.status.phase == "fenced"
    job.wait(0.5)
    assert job.status.phase == "open"


def test_survivors_that_never_say_what_they_have_are_waited_for_until_the_rejoin_time_out() -> None:
    job = two_of_four_are_replaced(3.0)
    job.wait(59.9)
    assert job.status.phase == "fenced"
    job.wait(0.2)
    assert [member.worker_id for member in job.last("b", Table).members] == ["b", "c"]


def test_a_survivor_of_which_the_block_is_not_whole_is_waited_for() -> None:
    job = open_job("a", "b", "c", "d", min_workers=2, max_workers=4, block_size=2, away_s=None)
    for name in ("b", "c", "d"):
        job.gone(name)
    job.wait(0.06)
    job.ready("a", 9)
    for name in ("c", "d"):
        job.hello(name, 2, wanted_seat=2 + (name == "d"))
        job.ready(name)
    job.wait(20.0)
    assert job.status.phase == "fenced"
    assert 'waiting for seat 0 ("a"), which is ready' in job.status.reason
    job.hello("b", 2, wanted_seat=1)
    job.ready("b")
    assert job.last("c", Table).resume_step == 9


def test_members_that_never_had_an_engine_of_their_epoch_have_lost_nothing() -> None:
    """One member that hangs while it builds its engine does not stop the others, which have the weights, too."""
    job = open_job("a", "b", "c", min_workers=2, max_workers=3, form_timeout_s=2.0)
    job.say("a", Fault(1, 1, None, "a connect has failed"))
    for name in ("a", "b"):
        job.say(name, Ready(WorkerState(), 77, 1))
    job.wait(2.1)
    table = job.last("a", Table)
    assert ([member.worker_id for member in table.members], table.resume_step) == (["a", "b"], 0)


def test_a_coordinator_without_its_state_waits_for_workers_that_come_from_an_epoch() -> None:
    job = DrivenJob(1, 3, form_timeout_s=2.0)
    job.hello("a", last=WorkerState(5, 3, 60), engine_boot=5, engine_epoch=3)
    job.hello("b")
    job.ready("b")
    job.wait(50.0)
    assert job.status.phase == "forming"
    assert 'waiting for seat 0 ("a"), which is not ready' in job.status.reason
    job.say("a", Ready(WorkerState(5, 3, 60), 5, 3))
    assert (job.last("b", Table).resume_step, len(job.last("b", Table).members)) == (60, 2)


def test_a_member_that_lost_its_weights_does_not_hide_those_of_the_others() -> None:
    """It is ready at once, while the others apply the step; a newcomer would be the source, with its first weights."""
    job = open_job("a", "b", "c", min_workers=2, max_workers=3, form_timeout_s=2.0)
    job.gone("a")
    job.wait(0.1)
    job.hello("d")
    job.say("d", Ready(WorkerState()))
    job.say("b", Ready(WorkerState(boot=77), 77, 1))
    job.wait(14.0)
    assert job.status.phase == "fenced"
    assert 'waiting for seat 2 ("c"), which is not ready' in job.status.reason
    job.ready("c", 121)
    table = job.last("d", Table)
    assert (table.resume_step, table.survivors) == (121, (2,))


# --- Workers that copy ---


def table_of(survivors: tuple[int, ...], source: int | None) -> Table:
    """Return a table of four members, on seats 1, 3, 5 and 7."""
    members = tuple(Member(rank, 2 * rank + 1, f"w{rank}", rank, "") for rank in range(4))
    return Table(7, 3, members, 12, "forward", survivors, source, "path")


@pytest.mark.parametrize(
    ("survivors", "source", "ranks"),
    [
        ((0, 1, 2), 0, (0, 3)),
        ((1, 2), 1, (0, 1, 3)),
        ((0, 3), 3, (1, 2, 3)),
        ((2,), 2, (0, 1, 2, 3)),
        ((0, 1, 2, 3), 0, ()),
        ((), None, ()),
    ],
)
def test_the_source_and_those_that_lack_its_state_copy(
    survivors: tuple[int, ...], source: int | None, ranks: tuple[int, ...]
) -> None:
    table = table_of(survivors, source)
    assert copying(table) == ranks
    if ranks:
        part = part_of(table, ranks)
        assert [one.rank for one in part.members] == list(range(len(ranks)))
        assert [one.seat for one in part.members] == [2 * rank + 1 for rank in ranks]
        assert part.source_rank is not None
        assert part.members[part.source_rank].worker_id == f"w{source}"
        assert part.survivors == (part.source_rank,), "the only one of them that has the state"
        assert (part.boot, part.epoch, part.resume_step) == (7, 3, 12)


def test_all_members_of_a_table_are_the_table() -> None:
    table = table_of((0, 2), 0)
    assert part_of(table, range(4)) == table
