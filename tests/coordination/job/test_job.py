"""What the coordinator of a job does, event by event."""

from __future__ import annotations

import pytest
from driven_job import DrivenJob, open_job

from softs_fast.coordination.job import events
from softs_fast.coordination.job.messages import (
    Alarm,
    CheckpointBegin,
    CheckpointDamaged,
    CheckpointEnd,
    Fault,
    Fence,
    Leave,
    Ready,
    Refused,
    Table,
    Welcome,
    WorkerState,
)
from softs_fast.coordination.job.status import FenceCount
from softs_fast.errors import ConfigError

# --- Ends of epochs ---


def test_a_blink_is_no_end() -> None:
    job = open_job("a", "b")
    table = job.last("b", Table)
    job.gone("b")
    job.wait(0.04)
    assert job.hello("b", engine_boot=77, engine_epoch=1) == [Welcome(77, 1), table]
    job.wait(1.0)
    assert job.status.phase == "open"
    assert job.status.n_fences == ()


def test_a_member_that_is_gone_ends_the_epoch() -> None:
    job = open_job("a", "b", "c")
    job.gone("b")
    job.wait(0.06)
    fence = job.last("a", Fence)
    assert (fence.epoch, fence.cause, fence.culprit_seat, fence.planned) == (1, "gone", 1, False)
    assert fence.text == 'rank 1, seat 1 ("b") is gone'
    assert job.last("c", Fence) == fence
    assert job.status.n_fences == (FenceCount("gone", 1),)


def test_survivors_of_any_number_go_on_at_once() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=4, away_s=None)
    job.gone("b")
    job.wait(0.06)
    job.ready("a", 7)
    assert job.status.phase == "fenced"
    job.ready("c", 6, in_doubt=True)
    table = job.last("a", Table)
    assert [member.seat for member in table.members] == [0, 2]
    assert (table.epoch, table.resume_step, table.roll, table.survivors) == (2, 7, "forward", (0, 1))


def test_a_step_that_one_survivor_has_not_reduced_is_dropped() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3, away_s=None)
    assert job.log[-1] == "epoch 1 is open: 3 members, step 0, a start, with the weights of rank 0"
    job.gone("b")
    job.wait(0.06)
    job.ready("a", 6, in_doubt=True)
    job.ready("c", 6)
    table = job.last("a", Table)
    assert (table.resume_step, table.roll, table.survivors) == (6, "back", (0, 1))
    assert job.log[-1] == (
        "epoch 2 is open: 2 members, step 6, 2 have its weights, step 7 is dropped and made again"
    )


def test_a_member_that_is_connected_and_not_ready_is_waited_for_during_the_window() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3)
    job.say("a", Fault(1, 5, 2, "connection closed by peer"))
    fence = job.last("b", Fence)
    assert fence.cause == "fault"
    assert fence.culprit_seat == 2
    assert fence.text == (
        'rank 2, seat 2 ("c") is lost: a call of rank 0, seat 0 ("a") failed in step 5: connection closed by peer'
    )
    job.ready("a", 4)
    job.ready("b", 4)
    job.wait(1.9)
    assert job.status.reason.startswith(
        '2 workers are ready, need 2 to 3; waiting for seat 2 ("c"), which is not ready; epoch 1 is over: rank 2,'
    )
    job.wait(0.2)
    assert [member.seat for member in job.last("a", Table).members] == [0, 1]
    # I10: it was accused, not evicted.
    job.ready("c", 4, epoch=1)
    assert job.last("a", Fence).cause == "joined"


def test_a_worker_that_has_raised_is_named_with_its_error() -> None:
    job = open_job("a", "b", "c")
    job.say("b", Fault(1, 5, 1, "ValueError: batch 17 has no labels"))
    fence = job.last("c", Fence)
    assert (fence.cause, fence.culprit_seat) == ("fault", 1)
    assert fence.text == 'rank 1, seat 1 ("b") failed in step 5: ValueError: batch 17 has no labels'


def test_a_call_that_names_no_rank_is_put_down_to_the_worker_that_is_gone() -> None:
    job = open_job("a", "b", "c")
    job.gone("b")
    job.say("c", Fault(1, 5, None, "connection closed by peer"))
    fence = job.last("a", Fence)
    assert fence.culprit_seat == 1
    assert fence.text.startswith(
        'rank 1, seat 1 ("b") is lost: a call of rank 2, seat 2 ("c") failed in step 5: '
    )
    job = open_job("a", "b")
    job.say("a", Fault(1, 5, None, "connection closed by peer"))
    assert job.last("b", Fence).culprit_seat is None, "it is not known"
    job = restarted(open_job("a", "b"))
    job.hello("a", engine_boot=77, engine_epoch=1)
    job.say("a", Fault(1, 5, None, "connection closed by peer"))
    assert job.last("a", Fence).culprit_seat is None, "the other one has had no time to connect again"


def test_what_a_second_worker_raises_is_logged() -> None:
    """It may be the cause of what the first one has raised; calls that fail because of others are none."""
    job = open_job("a", "b", "c")
    job.say("a", Fault(1, 5, 0, "ValueError: first"))
    job.say("b", Fault(1, 5, 1, "ValueError: second"))
    job.say("c", Fault(1, 5, None, "connection closed by peer"))
    assert [line for line in job.log if "failed, too" in line] == [
        'rank 1, seat 1 ("b") failed, too, in step 5: ValueError: second'
    ]
    assert not any("connection closed" in line for line in job.log)
    assert "first" in job.last("b", Fence).text


def test_the_first_cause_is_kept() -> None:
    job = open_job("a", "b", "c")
    job.say("a", Fault(1, 5, None, "first"))
    job.say("b", Fault(1, 5, None, "second"))
    job.gone("c")
    job.wait(1.0)
    assert [fence.text for fence in job.status.fences] == [
        'a call of rank 0, seat 0 ("a") failed in step 5: first'
    ]


def test_what_is_said_of_another_epoch_changes_nothing() -> None:
    job = open_job("a", "b")
    job.say("a", Fault(7, 5, None, "late"))
    job.say("a", CheckpointBegin(0, 5, "x"))
    job.say("a", CheckpointEnd(0, 5, "x"))
    job.tell(events.Received(999, Leave("no such connection")))
    job.ready("a", 0, epoch=9)
    assert job.status.phase == "open"
    assert job.status.n_fences == ()


def test_a_process_that_is_started_again_ends_the_epoch_of_the_one_before() -> None:
    job = open_job("a", "b")
    job.gone("b")
    assert job.hello("b", 2) == []
    job.wait(0.05)
    assert job.last("b", Welcome) == Welcome(77, 1)
    assert job.last("a", Fence).text == 'rank 1, seat 1 ("b") was started again, as process 2 of b'
    job.ready("b")
    job.ready("a", 9)
    table = job.last("b", Table)
    assert (table.resume_step, table.survivors, table.source_rank) == (9, (0,), 0)


def test_an_engine_that_was_given_up_ends_the_epoch() -> None:
    job = open_job("a", "b")
    job.ready("a", 3)
    assert job.last("b", Fence).cause == "dropped"


# --- Planned ends ---


def test_new_workers_enter_at_the_end_of_a_step() -> None:
    job = open_job("a", "b", min_workers=2, max_workers=4)
    job.hello("c")
    job.ready("c")
    job.wait(0.4)
    assert job.status.phase == "open"
    job.wait(0.2)
    fence = job.last("a", Fence)
    assert (fence.cause, fence.planned) == ("joined", True)
    assert job.status.phase == "open"
    job.ready("a", 12)
    job.ready("b", 12)
    table = job.last("c", Table)
    assert (len(table.members), table.resume_step, table.survivors) == (3, 12, (0, 1))
    job.hello("d")
    job.ready("d")
    assert job.last("a", Fence).epoch == 2, "with all of them there is nothing to wait for"


def test_a_planned_end_that_one_member_does_not_reach() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3)
    job.say("a", Leave("done"))
    job.ready("a", 5)
    job.ready("b", 5)
    assert job.status.phase == "open"
    job.wait(0.06)
    fence = job.last("c", Fence)
    assert (fence.cause, fence.planned) == ("left", False)
    assert fence.text == 'seat 0 ("a") leaves: done; the step has not ended at seat 2 ("c")'


def test_a_member_that_leaves_outside_of_a_step_does_not_stop_the_others_for_long() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3, settle_s=1.0)
    job.begin("b", 9)
    job.say("a", Leave("done", is_resting=True))
    job.wait(0.9)
    assert job.status.phase == "open"
    job.wait(0.2)
    assert job.last("b", Fence).text.startswith('seat 0 ("a") leaves: done; the step has not ended at')
    for name in ("a", "b", "c"):
        job.ready(name, 8)
    assert [member.seat for member in job.last("b", Table).members] == [1, 2]


def test_a_planned_end_that_no_member_reaches() -> None:
    job = open_job("a", "b")
    job.tell(events.Drain(1, "maintenance"))
    job.wait(1.9)
    assert job.status.phase == "open"
    assert job.status.reason == 'seat 1 ("b") is drained: maintenance'
    job.wait(0.2)
    assert job.status.phase == "fenced"


def test_a_worker_that_leaves_is_no_member_any_more() -> None:
    job = open_job("a", "b", "c", min_workers=2, max_workers=3)
    job.say("c", Leave("SIGTERM"))
    for name in ("a", "b", "c"):
        assert job.last(name, Fence).planned
        job.ready(name, 8)
    assert isinstance(job.last("c", Refused), Refused)
    assert job.conns["c"] in job.closed
    assert [member.seat for member in job.last("a", Table).members] == [0, 1]
    assert job.last("a", Table).resume_step == 8


def test_the_job_ends_when_all_have_left() -> None:
    job = open_job("a", "b")
    job.say("a", Leave("done", is_resting=True))
    assert job.status.phase == "open"
    job.say("b", Leave("done", is_resting=True))
    assert job.last("b", Fence).cause == "ended"
    assert job.status.phase == "ended"
    assert job.status.reason == "all members have left"
    [refused] = job.hello("c")
    assert isinstance(refused, Refused)
    assert refused.code == "ended"


# --- Administrators ---


def test_an_evicted_process_does_not_come_back() -> None:
    job = open_job("a", "b")
    job.tell(events.Evict(1, "broken memory"))
    assert job.last("a", Fence).text == 'rank 1, seat 1 ("b") is evicted: broken memory'
    assert job.last("b", Refused).code == "evicted"
    [refused] = job.hello("b")
    assert isinstance(refused, Refused)
    assert refused.code == "evicted"
    assert job.hello("b", 2) == [Welcome(77, 1)]


def test_a_smaller_job() -> None:
    job = open_job("a", "b", "c", "d", min_workers=1, max_workers=4)
    job.tell(events.Resize(1, 2))
    for name in ("a", "b", "c", "d"):
        assert job.last(name, Fence).cause == "resized"
        job.ready(name, 2)
    assert [member.seat for member in job.last("a", Table).members] == [0, 1]
    assert [seat.seat for seat in job.status.seats] == [0, 1, None, None]
    job.tell(events.Resize(1, 4))
    for name in ("c", "d"):
        job.ready(name, 2, epoch=1)
    assert job.last("a", Fence).cause == "joined"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (events.Drain(5, "x"), "no worker has seat 5; the job has seats 0 to 1"),
        (events.Evict(5, "x"), "no worker has seat 5"),
        (events.Resize(3, 2), "max_workers of the job is 2; need 3 to"),
    ],
)
def test_wrong_orders_change_nothing(event: events.Event, text: str) -> None:
    job = open_job("a", "b")
    before = job.status
    with pytest.raises(ConfigError, match=text):
        job.tell(event)
    assert job.status == before


def test_the_end_of_a_job_reaches_all() -> None:
    job = open_job("a", "b")
    job.hello("c")
    job.tell(events.End("enough"))
    assert job.last("a", Fence).cause == "ended"
    assert {job.last(name, Refused).text for name in ("a", "b", "c")} == {"the job has ended: enough"}
    assert job.closed == set(job.conns.values())


# --- Too few, and too slow ---


def test_a_job_with_too_few_workers_fails_and_names_them() -> None:
    job = open_job("a", "b", "c")
    job.gone("b")
    job.wait(0.06)
    job.ready("a", 1)
    job.ready("c", 1)
    job.wait(59)
    assert job.status.phase == "fenced"
    assert 'waiting for seat 1 ("b"), which is away' in job.status.reason
    job.wait(2)
    assert job.status.phase == "failed"
    assert (
        'too few workers for 60 s: 2 workers are ready, need 3; waiting for seat 1 ("b")' in job.status.reason
    )
    assert job.last("a", Refused).text.startswith("the job has failed: too few workers")


def test_a_member_that_stands_still_is_named_once() -> None:
    job = open_job("a", "b", "c", stalled_after_s=10.0)
    for name in ("a", "b", "c"):
        job.begin(name, 1)
    job.wait(100)
    job.begin("a", 2)
    job.begin("b", 2)
    job.wait(9.9)
    assert job.status.spread == 1
    job.wait(50)
    alarms = [one for one in job.heard("a") if isinstance(one, Alarm)]
    assert [alarm.seats for alarm in alarms] == [(2,)]
    assert alarms[0].text == 'no progress for 10 s, while others are in step 2: seat 2 ("c")'
    assert job.status.phase == "open"


def test_a_member_that_stands_still_is_evicted_if_the_options_say_so() -> None:
    job = open_job("a", "b", stalled_after_s=10.0, evict_stalled=True)
    for name in ("a", "b"):
        job.begin(name, 1)
    job.begin("a", 2)
    job.wait(11)
    assert job.last("a", Fence).cause == "stalled"
    assert job.last("b", Refused).code == "evicted"


# --- Checkpoints ---


def test_a_checkpoint_is_complete_when_all_have_written_it() -> None:
    job = open_job("a", "b")
    for name in ("a", "b"):
        job.say(name, CheckpointBegin(1, 10, "ckpt/10"))
    job.say("a", CheckpointEnd(1, 10, "ckpt/10"))
    assert job.status.checkpoint is None
    job.say("b", CheckpointEnd(1, 10, "ckpt/10"))
    assert job.status.checkpoint == events.Completed(1, 10, "ckpt/10")
    assert job.records[-1] == events.Completed(1, 10, "ckpt/10")


def test_a_checkpoint_of_an_epoch_that_is_over_is_dropped() -> None:
    job = open_job("a", "b")
    job.say("a", CheckpointBegin(1, 10, "ckpt/10"))
    job.say("a", CheckpointEnd(1, 10, "ckpt/10"))
    job.say("b", Fault(1, 11, None, "x"))
    job.say("b", CheckpointEnd(1, 10, "ckpt/10"))
    for name in ("a", "b"):
        job.ready(name, 10)
    job.say("b", CheckpointEnd(1, 10, "ckpt/10"))
    assert job.status.checkpoint is None


def test_without_survivors_all_load_the_last_complete_checkpoint() -> None:
    job = open_job("a", "b")
    for name in ("a", "b"):
        job.say(name, CheckpointBegin(1, 10, "ckpt/10"))
    for name in ("a", "b"):
        job.say(name, CheckpointEnd(1, 10, "ckpt/10"))
    for name in ("a", "b"):
        job.gone(name)
    job.wait(0.06)
    for name in ("a", "b"):
        job.hello(name, 2)
        job.ready(name)
    table = job.last("a", Table)
    assert (table.resume_step, table.source_rank, table.survivors, table.checkpoint) == (
        10,
        None,
        (),
        "ckpt/10",
    )


def with_checkpoints(*steps: int) -> DrivenJob:
    """Return a job of which the workers have written checkpoints, and then were all lost."""
    job = open_job("a", "b")
    for step in steps:
        for name in ("a", "b"):
            job.say(name, CheckpointBegin(1, step, f"ckpt/{step}"))
        for name in ("a", "b"):
            job.say(name, CheckpointEnd(1, step, f"ckpt/{step}"))
    job = restarted(job)
    job.wait(3.1)
    for name in ("a", "b"):
        job.hello(name, 2)
        job.ready(name)
    return job


def test_a_damaged_checkpoint_is_replaced_by_the_one_before() -> None:
    job = with_checkpoints(10, 20)
    table = job.last("a", Table)
    assert (table.resume_step, table.checkpoint) == (20, "ckpt/20")
    job.say("b", CheckpointDamaged(table.epoch, 20, "ckpt/20"))
    assert job.last("a", Fence).text == 'seat 1 ("b") has found checkpoint ckpt/20 of step 20 damaged'
    for name in ("a", "b"):
        job.ready(name, epoch=0)
        job.say(name, Ready(WorkerState(), table.boot, table.epoch))
    again = job.last("a", Table)
    assert (again.resume_step, again.checkpoint, again.source_rank) == (10, "ckpt/10", None)
    # What is said of another one changes nothing.
    job.say("b", CheckpointDamaged(again.epoch, 20, "ckpt/20"))
    assert job.status.phase == "open"
    job.say("b", CheckpointDamaged(again.epoch, 10, "ckpt/10"))
    assert job.status.phase == "failed"
    assert job.status.reason == (
        'seat 1 ("b") has found checkpoint ckpt/10 of step 10 damaged, and there is no other one; restore it, and begin '
        "again"
    )


def test_only_the_last_checkpoints_are_remembered() -> None:
    job = with_checkpoints(*range(1, 21))
    kept = [one.step for one in job.job.records() if isinstance(one, events.Completed)]
    assert kept == [*range(13, 21)]


# --- A coordinator that is started again ---


def restarted(job: DrivenJob, **options: object) -> DrivenJob:
    return DrivenJob(job.options.min_workers, job.options.max_workers, records=job.job.records(), **options)


def test_the_epoch_goes_on_when_the_coordinator_is_started_again() -> None:
    job = open_job("a", "b")
    again = restarted(job)
    assert again.status.phase == "open"
    again.wait(2.9)
    table = job.last("a", Table)
    for name in ("a", "b"):
        assert again.hello(name, engine_boot=77, engine_epoch=1)[1] == table
    again.wait(10)
    assert again.status.phase == "open"
    assert again.status.n_fences == ()


def test_members_that_do_not_come_back_to_a_new_coordinator_are_gone() -> None:
    again = restarted(open_job("a", "b"))
    again.hello("a", engine_boot=77, engine_epoch=1)
    again.wait(3.1)
    assert again.last("a", Fence).text == 'rank 1, seat 1 ("b") is gone'
    again.ready("a", 4, epoch=1)
    again.hello("b", 2)
    again.ready("b")
    assert again.last("b", Table).epoch == 2


def test_a_coordinator_that_knows_nothing_ends_the_epochs_of_workers() -> None:
    job = DrivenJob(2)
    for name in ("a", "b"):
        fence = job.hello(name, engine_boot=5, engine_epoch=3)[1]
        assert isinstance(fence, Fence)
        assert (fence.boot, fence.epoch, fence.cause) == (5, 3, "coordinator")
    job.say("a", Ready(WorkerState(5, 3, 6), 5, 3))
    job.say("b", Ready(WorkerState(5, 3, 5, in_doubt=True), 5, 3))
    table = job.last("a", Table)
    assert (table.boot, table.epoch, table.resume_step, table.survivors) == (77, 4, 6, (0, 1))


def test_records_that_do_not_fit() -> None:
    records = open_job("a", "b", "c").job.records()
    with pytest.raises(ConfigError, match="the state has a worker on seat 2, the job 2 seats"):
        DrivenJob(2, records=records)
    with pytest.raises(ConfigError, match='the state is of job "other", not of "job"'):
        DrivenJob(3, records=[events.Booted("other", 1)])
