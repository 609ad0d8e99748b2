"""Workers that join copy the state while the epoch goes on; it ends for them when they have all but the last step."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from driven_job import DrivenJob, open_job

from softs_fast.coordination.job.events import Tick
from softs_fast.coordination.job.job import Job
from softs_fast.coordination.job.messages import (
    Fault,
    Fence,
    Follow,
    Followed,
    Leave,
    Ready,
    Table,
    Unfollowed,
    WorkerState,
)


def job(max_workers: int = 4, **options: Any) -> DrivenJob:
    """Return a job in its first epoch, with three members of two at least."""
    driven = DrivenJob(2, max_workers, **options)
    for name in "abc":
        join(driven, name)
    driven.wait(driven.options.form_timeout_s)
    assert driven.status.phase == "open"
    return driven


def join(driven: DrivenJob, name: str, **hello: Any) -> None:
    driven.hello(name, can_follow=True, **hello)
    driven.ready(name)


def followed(driven: DrivenJob, name: str, step: int, backlog: int) -> None:
    number = driven.last(name, Follow).number
    driven.say(name, Followed(driven.status.epoch, number, step, backlog))


def members_ready(driven: DrivenJob, committed: int, *names: str) -> None:
    for name in names:
        driven.ready(name, committed)


def planned(driven: DrivenJob) -> bool:
    return any(isinstance(one, Fence) for one in driven.said[driven.conns["a"]])


def following_job(max_workers: int = 4, **options: Any) -> DrivenJob:
    """Return a job that a worker follows up to step 7, and of which the epoch ends for it."""
    driven = job(max_workers, **options)
    join(driven, "d")
    driven.wait(driven.options.join_s)
    followed(driven, "d", 7, 1)
    assert driven.last("a", Fence).planned
    return driven


def test_the_epoch_ends_when_the_follower_is_close_and_the_next_one_begins_when_it_has_all() -> None:
    driven = job()
    join(driven, "d")
    told = driven.last("d", Follow)
    assert [one.worker_id for one in told.table.members] == ["c", "d"]
    assert (told.table.epoch, told.table.source_rank) == (1, 0)
    assert driven.last("c", Follow) == told
    assert not any(isinstance(one, Follow) for one in driven.said[driven.conns["a"]])
    followed(driven, "d", 5, 3)
    assert not planned(driven)
    assert "follows, at step 5" in [seat.text for seat in driven.status.seats]
    followed(driven, "d", 7, 1)
    assert driven.last("a", Fence).cause == "joined"
    members_ready(driven, 8, *"abc")
    assert driven.status.phase == "fenced"
    assert 'waiting for seat 3 ("d"), which is not ready' in driven.status.reason
    followed(driven, "d", 8, 0)
    table = driven.last("d", Table)
    assert (table.resume_step, table.survivors, table.followers, table.source_rank) == (8, (0, 1, 2), (3,), 0)


@pytest.mark.parametrize("name", "cd")
def test_if_the_copy_fails_the_members_wait_for_another_one(name: str) -> None:
    driven = job()
    join(driven, "d")
    if name == "c":
        # The follower may be stopped.
        driven.say(name, Unfollowed(1, driven.last("d", Follow).number, "it is stopped"))
        assert "it is stopped" in driven.log[-2]
        assert [driven.last(one, Follow).number & 3 for one in "cd"] == [2, 2]
    driven.say(name, Unfollowed(1, driven.last("d", Follow).number - 1, "of an earlier copy"))
    driven.say("a", Unfollowed(1, driven.last("d", Follow).number, "of another worker"))
    assert not planned(driven)
    driven.say(name, Unfollowed(1, driven.last("d", Follow).number, "it is too slow"))
    assert driven.last("a", Fence).cause == "joined"
    assert any("cannot copy, or serve, the state" in line and "it is too slow" in line for line in driven.log)
    members_ready(driven, 8, *"abc")
    table = driven.last("d", Table)
    assert (table.survivors, table.followers) == ((0, 1, 2), ())


def test_a_follower_that_stays_behind_copies_the_whole_state() -> None:
    driven = following_job(form_timeout_s=4.0)
    members_ready(driven, 8, *"abc")
    driven.wait(3.9)
    assert driven.status.phase == "fenced"
    driven.wait(0.1)
    table = driven.last("d", Table)
    assert (len(table.members), table.followers) == (4, ())


def test_a_follower_with_a_copy_that_breaks_at_the_end_copies_in_the_next_epoch() -> None:
    driven = following_job()
    members_ready(driven, 8, *"abc")
    driven.say("d", Unfollowed(1, driven.last("d", Follow).number, "the source is lost"))
    table = driven.last("d", Table)
    assert (len(table.members), table.followers) == (4, ())


def test_a_follower_that_is_lost_delays_nothing() -> None:
    driven = following_job()
    driven.gone("d")
    members_ready(driven, 8, *"abc")
    assert len(driven.last("a", Table).members) == 3


def test_a_member_that_is_lost_ends_the_epoch_and_nothing_waits_for_the_follower() -> None:
    for step, followers in ((7, ()), (8, (2,))):
        driven = job()
        join(driven, "d")
        followed(driven, "d", step, 3)
        driven.gone("c")
        driven.wait(0.1)
        members_ready(driven, 8, *"ab")
        driven.wait(5.0)
        table = driven.last("d", Table)
        assert (table.resume_step, table.survivors, table.followers) == (8, (0, 1), followers)


def test_a_step_in_doubt_that_all_apply_is_copied() -> None:
    driven = job()
    join(driven, "d")
    followed(driven, "d", 8, 0)
    driven.say("a", Fault(1, 9, None, "lost"))
    for name in "abc":
        driven.ready(name, 8, in_doubt=True)
    table = driven.last("d", Table)
    assert (table.resume_step, table.roll, table.followers) == (9, "forward", ())


def test_one_that_comes_late_follows_the_next_epoch() -> None:
    driven = job(8)
    join(driven, "d")
    driven.wait(driven.options.join_s)
    join(driven, "e")
    driven.wait(driven.options.join_s)
    followed(driven, "d", 7, 0)
    assert driven.last("a", Fence).cause == "joined"
    members_ready(driven, 7, *"abc")
    assert [one.worker_id for one in driven.last("d", Table).members] == [*"abcd"]
    assert driven.last("d", Table).followers == (3,)
    driven.wait(2 * driven.options.join_s)
    driven.wait(driven.options.join_s)
    assert [one.worker_id for one in driven.last("e", Follow).table.members] == [*"de"]


def test_two_that_come_together_copy_together_and_the_slower_one_decides() -> None:
    driven = job(5)
    for name in "de":
        join(driven, name)
    assert [one.worker_id for one in driven.last("e", Follow).table.members] == [*"cde"]
    followed(driven, "d", 7, 0)
    assert not planned(driven)
    followed(driven, "e", 7, 0)
    members_ready(driven, 7, *"abc")
    assert driven.last("e", Table).followers == (3, 4)


def test_a_job_in_multiples_waits_for_enough_followers() -> None:
    driven = DrivenJob(2, 4, multiple_of=2)
    for name in "abcd"[:2]:
        join(driven, name)
    driven.wait(driven.options.form_timeout_s)
    join(driven, "c")
    driven.wait(1.0)
    assert not any(isinstance(one, Follow) for one in driven.said[driven.conns["c"]])
    join(driven, "d")
    driven.gone("c")
    driven.wait(0.1)
    join(driven, "e", wanted_seat=2)
    assert [one.worker_id for one in driven.last("e", Follow).table.members] == [*"bed"]


def test_a_worker_that_cannot_follow_is_waited_for() -> None:
    driven = job()
    driven.hello("d")
    driven.ready("d")
    assert planned(driven)
    driven = open_job(*"abc", max_workers=4, min_workers=2)
    join(driven, "d")
    assert planned(driven), "nor can it, if no member can serve its state"


def test_of_a_worker_that_connects_again_the_copy_begins_anew() -> None:
    driven = job()
    join(driven, "d")
    number = driven.last("d", Follow).number
    driven.gone("c")
    driven.hello("c", can_follow=True, engine_boot=77, engine_epoch=1)
    assert driven.last("c", Follow) == driven.last("d", Follow)
    assert driven.last("d", Follow).number == number + 1
    driven.gone("d")
    join(driven, "d")
    assert driven.last("c", Follow) == driven.last("d", Follow)
    assert driven.last("d", Follow).number == number + 2


def test_a_source_with_a_connection_that_comes_and_goes_keeps_no_worker_out() -> None:
    """Each copy takes longer than a connection lasts."""
    driven = job()
    join(driven, "d")
    for step in range(60):
        if planned(driven):
            break
        for name in "abc":
            driven.begin(name, step)
        driven.wait(1.0)
        driven.gone("c")
        driven.hello("c", can_follow=True, engine_boot=77, engine_epoch=1)
    assert driven.last("a", Fence).cause == "joined"
    members_ready(driven, step, *"abc")
    table = driven.last("d", Table)
    assert (len(table.members), table.followers) == (4, ())


def test_copies_of_a_coordinator_that_takes_over_have_other_numbers() -> None:
    driven = job()
    join(driven, "d")
    told = driven.last("d", Follow)
    driven.job = Job(driven.options, 78, driven.now_s, driven.job.records())
    for name in "abc":
        driven.hello(name, can_follow=True, engine_boot=77, engine_epoch=1, last=WorkerState(77, 1, 5))
    driven.hello("d", can_follow=True, last=WorkerState(77))
    driven.say("d", Ready(WorkerState(77), 0, 0))
    again = driven.last("d", Follow)
    assert (again.table, again.number == told.number) == (told.table, False)


@pytest.mark.parametrize(("has_begun", "step"), [(False, 50), (True, 0)])
def test_the_weights_of_a_follower_count_until_it_overwrites_them(has_begun: bool, step: int) -> None:
    """Those that it has from then on were compared with no member's."""
    driven = DrivenJob(1, 2, rejoin_timeout_s=1.0, away_s=0.5)
    join(driven, "a")
    driven.wait(driven.options.form_timeout_s)
    driven.hello("b", can_follow=True, last=WorkerState(committed=50))
    driven.say("b", Ready(WorkerState(committed=50)))
    if has_begun:
        driven.say("b", Ready(WorkerState(77)))
        followed(driven, "b", 60, 3)
    driven.gone("a")
    driven.wait(3.0)
    table = driven.last("b", Table)
    assert (table.resume_step, table.followers) == (step, ())


def test_a_follower_that_comes_from_another_training_is_named() -> None:
    driven = job()
    driven.hello("d", can_follow=True, last=WorkerState(99, 40, 9000))
    driven.say("d", Ready(WorkerState(99, 40, 9000), 0, 0))
    assert any("comes from another training, with 9000 steps" in line for line in driven.log)


def test_the_members_wait_for_a_follower_that_does_not_catch_up() -> None:
    """It is as slow as they are, so it stays behind."""
    driven = job()
    join(driven, "d")
    driven.begin("a", 5)
    followed(driven, "d", 3, 9)
    driven.wait(driven.options.form_timeout_s - 0.1)
    driven.begin("a", 15)
    followed(driven, "d", 13, 9)
    assert not planned(driven)
    driven.wait(0.1)
    assert driven.last("a", Fence).planned
    members_ready(driven, 16, *"abc")
    assert driven.status.phase == "fenced"
    followed(driven, "d", 15, 0)
    assert driven.status.phase == "fenced"
    followed(driven, "d", 16, 0)
    assert driven.last("d", Table).followers == (3,)


def test_a_worker_that_is_lost_as_a_follower_again_and_again_cools_down() -> None:
    driven = job()
    for incarnation in (1, 2, 3):
        driven.hello("d", incarnation, can_follow=True, wanted_seat=3)
        driven.ready("d")
        driven.wait(0.1)
        if incarnation < 3:
            assert driven.last("d", Follow)
            driven.gone("d")
            driven.wait(0.1)
    assert not any(isinstance(one, Follow) for one in driven.said[driven.conns["d"]])
    driven.wait(2.0)
    assert driven.last("d", Follow)


def test_nothing_waits_for_a_follower_of_a_source_that_is_lost_after_the_last_step() -> None:
    driven = following_job(away_s=0.1)
    members_ready(driven, 8, *"abc")
    driven.gone("c")
    driven.wait(0.2)
    table = driven.last("d", Table)
    assert ([one.worker_id for one in table.members], table.followers) == ([*"abd"], ())


def test_before_its_members_have_come_back_no_epoch_ends_for_a_worker_that_joins() -> None:
    driven = job()
    driven.job = Job(driven.options, 78, driven.now_s, driven.job.records())
    join(driven, "d")
    for name in "abc":
        driven.hello(name, can_follow=True, engine_boot=77, engine_epoch=1, last=WorkerState(77, 1, 5))
    assert not planned(driven)
    assert driven.last("d", Follow)


def test_a_member_that_leaves_meanwhile_ends_the_epoch_first() -> None:
    driven = job()
    join(driven, "d")
    followed(driven, "d", 5, 4)
    driven.say("a", Leave("done"))
    members_ready(driven, 6, *"abc")
    followed(driven, "d", 6, 0)
    table = driven.last("d", Table)
    assert ([one.worker_id for one in table.members], table.followers) == ([*"bcd"], (2,))


def test_one_that_is_left_out_follows_the_next_epoch_though_nothing_else_happens() -> None:
    driven = job(8)
    join(driven, "d")
    driven.wait(driven.options.join_s)
    join(driven, "e")
    followed(driven, "d", 7, 0)
    members_ready(driven, 7, *"abc")
    assert len(driven.last("d", Table).members) == 4
    driven.begin("a", 8)
    wake_s = driven.job.next_wake_s()
    assert wake_s == driven.now_s + driven.options.join_s
    driven.now_s = wake_s
    driven.tell(Tick())
    assert driven.last("e", Follow).table.epoch == 2


def test_a_source_that_copies_the_last_gradients_for_longer_than_a_blink_ends_no_epoch_as_a_fault() -> None:
    driven = following_job()
    members_ready(driven, 8, *"ab")
    driven.wait(driven.options.form_timeout_s / 2)
    assert driven.status.phase == "open"
    members_ready(driven, 8, "c")
    followed(driven, "d", 8, 0)
    assert driven.last("d", Table).followers == (3,)


def test_a_source_that_does_not_end_its_last_step_is_not_waited_for_forever() -> None:
    driven = following_job()
    members_ready(driven, 8, *"ab")
    driven.wait(driven.options.form_timeout_s)
    assert "the step has not ended at seat 2" in driven.last("c", Fence).text


def test_the_epoch_of_members_that_wait_in_a_step_ends_for_workers_that_join() -> None:
    """They may wait for samples: then nothing ends their step, at which the source would copy."""
    driven = job(5)
    join(driven, "d")
    driven.wait(driven.options.join_s + driven.options.form_timeout_s / 2)
    driven.begin("a", 3)
    driven.wait(driven.options.form_timeout_s / 2)
    assert not planned(driven), "a step has begun since"
    driven.now_s = driven.job.next_wake_s()
    driven.tell(Tick())
    assert driven.last("a", Fence).planned, "a step that only lasts counts"
    driven.wait(driven.options.form_timeout_s)
    fence = driven.last("a", Fence)
    assert (fence.cause, fence.planned) == ("joined", False)
    join(driven, "e")
    members_ready(driven, 2, *"abc")
    table = driven.last("e", Table)
    assert len(table.members) == 5
    assert (table.resume_step, table.survivors, table.followers) == (2, (0, 1, 2), ())


def test_beside_a_member_that_would_not_compare_the_weights_no_one_follows() -> None:
    driven = DrivenJob(2, 4)
    for name in "ab":
        join(driven, name)
    driven.hello("c")
    driven.ready("c")
    driven.wait(driven.options.form_timeout_s)
    join(driven, "d")
    assert planned(driven)
    assert not any(isinstance(one, Follow) for one in driven.said[driven.conns["d"]])


def test_weights_that_a_member_would_not_compare_are_copied_again() -> None:
    """A coordinator that takes over learns late that the member is of an earlier version."""
    driven = job()
    driven.job = Job(driven.options, 78, driven.now_s, driven.job.records())
    for name in "ab":
        driven.hello(name, can_follow=True, engine_boot=77, engine_epoch=1, last=WorkerState(77, 1, 5))
    driven.hello("d", can_follow=True)
    driven.say("d", Ready(WorkerState(), 0, 0))
    followed(driven, "d", 7, 1)
    driven.hello("c", engine_boot=77, engine_epoch=1, last=WorkerState(77, 1, 5))
    members_ready(driven, 7, *"abc")
    table = driven.last("d", Table)
    assert (table.resume_step, table.survivors, table.followers) == (7, (0, 1, 2), ())


def test_what_followers_say_costs_as_much_for_each_of_many() -> None:
    def n_calls(n: int, *, is_open: bool) -> int:
        driven = job(3 + n, join_s=0.5)
        names = [f"follower {number}" for number in range(n)]
        for name in names:
            join(driven, name)
        number = driven.last("c", Follow).number
        if not is_open:
            for name in names:
                driven.say(name, Followed(1, number, 1, 1))
            members_ready(driven, 2, *"abc")
            assert driven.status.phase == "fenced"
        found = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(count)
        try:
            driven.say("follower 1", Followed(1, number, 2, 9))
        finally:
            sys.setprofile(None)
        return found

    for is_open in (True, False):
        assert n_calls(128, is_open=is_open) < 6 * n_calls(32, is_open=is_open)
