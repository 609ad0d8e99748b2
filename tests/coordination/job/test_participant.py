"""What a worker says to the coordinator, and what its engine has to do."""

from __future__ import annotations

import pytest

from softs_fast.coordination.job.messages import (
    Alarm,
    CheckpointBegin,
    CheckpointEnd,
    Fault,
    Fence,
    Follow,
    Followed,
    Hello,
    Leave,
    Member,
    Ready,
    Refused,
    Report,
    Step,
    Table,
    Unfollowed,
    Welcome,
    WorkerState,
)
from softs_fast.coordination.job.participant import (
    Build,
    Copy,
    EndEngine,
    GiveUp,
    Participant,
    Say,
    Warn,
)
from softs_fast.errors import ConfigError
from softs_fast.records import replace

HELLO = Hello("job", "a", 3, wanted_seat=0)


def table(
    epoch: int = 1, *, step: int = 0, survivors: tuple[int, ...] = (0,), source: int | None = 0
) -> Table:
    members = (Member(0, 0, "a", 3, ""), Member(1, 1, "b", 1, ""))
    return Table(7, epoch, members, step, "back", survivors, source, "" if source is not None else "path")


def fence(epoch: int = 1, *, planned: bool = False) -> Fence:
    return Fence(7, epoch, "gone", 1, "gone", planned)


def welcome() -> Participant:
    worker = Participant(HELLO)
    assert worker.connected() == HELLO
    assert worker.receive(Welcome(7, 0)) == [Say(Ready(WorkerState()))]
    return worker


def member() -> Participant:
    worker = welcome()
    assert worker.receive(table()) == [Build(table(), 0, "keep")]
    worker.prepared()
    assert worker.state == WorkerState(7, 1, 0)
    return worker


def test_steps() -> None:
    worker = member()
    for step in (1, 2):
        assert worker.begin() == [Say(Step(1, step))]
        worker.reduced()
        assert worker.state == WorkerState(7, 1, step - 1, in_doubt=True)
        assert worker.passed(is_last=False) == []
        assert worker.state == WorkerState(7, 1, step)


def test_reports_in_a_step_and_nowhere_else() -> None:
    worker, report = member(), Report(8, 0.5, 2.0, 1.5)
    assert worker.report(report) == []
    assert worker.begin(report) == worker.report(report) == [Say(Step(1, 1, report))]
    worker.passed(is_last=False)
    assert worker.report(report) == welcome().report(report) == []


def test_no_step_outside_of_an_epoch() -> None:
    worker = welcome()
    with pytest.raises(ConfigError, match="a step needs an open epoch; the worker is idle"):
        worker.begin()


@pytest.mark.parametrize(
    ("state", "received", "duty"),
    [
        (WorkerState(7, 1, 4), table(2, step=4), "keep"),
        (WorkerState(7, 1, 4, in_doubt=True), table(2, step=4), "keep"),
        (WorkerState(7, 1, 4, in_doubt=True), table(2, step=5), "apply"),
        (WorkerState(7, 1, 4, in_doubt=True), table(2, step=5, survivors=(1,), source=1), "copy"),
        (WorkerState(), table(2, step=5, survivors=(), source=None), "load"),
    ],
)
def test_duties(state: WorkerState, received: Table, duty: str) -> None:
    worker = welcome()
    worker.state = state
    assert worker.receive(received) == [Build(received, 0, duty)]
    if duty == "apply":
        worker.applied()
        assert worker.state == WorkerState(7, 1, 5), "known even if the epoch ends now"
    worker.prepared()
    assert worker.state == WorkerState(7, 2, received.resume_step)


def test_a_fence_in_a_step() -> None:
    worker = member()
    worker.begin()
    worker.reduced()
    assert worker.receive(fence()) == [Warn("epoch 1 is over: gone"), EndEngine(fence())]
    assert worker.phase == "ending"
    worker.reduced()
    assert worker.passed(is_last=False) == []
    assert worker.state == WorkerState(7, 1, 0, in_doubt=True)
    assert worker.ended() == [Say(Ready(WorkerState(7, 1, 0, in_doubt=True), 7, 1))]


def test_a_fence_before_the_weights_are_there() -> None:
    worker = welcome()
    worker.receive(table())
    assert worker.receive(fence()) == [Warn("epoch 1 is over: gone"), EndEngine(fence())]
    worker.prepared()
    assert worker.ended() == [Say(Ready(WorkerState(), 7, 1))]


def test_a_planned_fence_waits_for_the_end_of_a_step_that_all_know() -> None:
    worker = member()
    worker.begin()
    assert worker.receive(fence(planned=True)) == []
    assert worker.wants_end
    worker.reduced()
    assert worker.passed(is_last=False) == [], "the others had not heard of it when they came to the barrier"
    worker.begin()
    worker.reduced()
    assert worker.passed(is_last=True) == [EndEngine(fence(planned=True))]
    assert not worker.awaits_fence, "the coordinator has said why"
    assert worker.state == WorkerState(7, 1, 2)
    assert worker.ended() == [Say(Ready(WorkerState(7, 1, 2), 7, 1))]
    assert not worker.wants_end


def test_a_worker_leaves_after_its_step_or_rests() -> None:
    stepping = member()
    stepping.begin()
    assert stepping.leave("done") == [Say(Leave("done"))]
    broken = member()
    broken.begin()
    assert broken.leave("error", at_once=True) == [Say(Leave("error", is_resting=True))]
    outside = member()
    assert outside.leave("done") == [Say(Leave("done", is_resting=True))]
    assert outside.phase == "member", "others may be at the end of the step before"


def test_a_failed_call() -> None:
    worker = member()
    worker.begin()
    fault, end = worker.fail("closed by peer", 1)
    assert fault == Say(Fault(1, 1, 1, "closed by peer"))
    assert isinstance(end, EndEngine)
    assert worker.fail("another one") == []
    assert worker.awaits_fence
    assert worker.receive(fence()) == [Warn("epoch 1 is over: gone")], "the engine is being ended already"
    assert worker.over == fence()
    assert not worker.awaits_fence
    assert worker.ended() == [Say(Ready(WorkerState(7, 1, 0), 7, 1))]


def test_the_engine_goes_on_without_a_connection() -> None:
    worker = member()
    assert worker.disconnected() == []
    assert worker.begin() == []
    worker.reduced()
    worker.passed(is_last=False)
    hello = worker.connected()
    assert hello == Hello("job", "a", 3, 0, "", WorkerState(7, 1, 1), engine_boot=7, engine_epoch=1)
    assert worker.receive(Welcome(7, 0)) == []
    assert worker.receive(table()) == [], "it is a member already"
    assert worker.phase == "member"


def test_what_was_said_to_no_connection_is_said_again() -> None:
    worker = member()
    worker.disconnected()
    worker.fail("closed by peer")
    assert worker.ended() == []
    worker.leave("done")
    assert worker.connected().engine_epoch == 0
    again = [Say(Leave("done", is_resting=True)), Say(Ready(WorkerState(7, 1, 0), 7, 1))]
    # Else the first worker that is ready would be taken for the one that has ended the epoch.
    assert worker.receive(Welcome(7, 0)) == [Say(Fault(1, 1, None, "closed by peer")), *again]
    worker.receive(fence())
    assert worker.receive(Welcome(7, 0)) == again, "the fault has arrived"


def test_an_epoch_that_a_worker_has_ended_is_not_entered_again() -> None:
    worker = member()
    worker.fail("closed by peer")
    worker.ended()
    assert worker.receive(table()) == [Say(Ready(WorkerState(7, 1, 0), 7, 1))]
    assert worker.phase == "idle"


def test_a_fence_of_an_epoch_that_it_was_not_in_is_answered() -> None:
    worker = welcome()
    assert worker.receive(fence(9)) == [Say(Ready(WorkerState(), 7, 9))]


def test_a_table_without_this_process() -> None:
    worker = welcome()
    other = Table(7, 1, (Member(0, 0, "a", 2, ""),), 0, "back", (0,), 0)
    assert worker.receive(other) == []
    assert worker.phase == "idle"


def test_refused() -> None:
    refused = Refused("evicted", "broken memory")
    worker = member()
    end, over = worker.receive(refused)
    assert isinstance(end, EndEngine)
    assert over == GiveUp(refused)
    assert worker.ended() == []
    assert worker.phase == "over"
    assert welcome().receive(refused) == [GiveUp(refused)]


def test_checkpoints_and_alarms() -> None:
    worker = member()
    worker.begin()
    worker.reduced()
    worker.passed(is_last=False)
    assert worker.begin_checkpoint("path") == [Say(CheckpointBegin(1, 1, "path"))]
    worker.receive(fence())
    assert worker.end_checkpoint(1, 1, "path") == [Say(CheckpointEnd(1, 1, "path"))]
    assert worker.receive(Alarm((1,), "seat 1 stands still")) == [Warn("seat 1 stands still")]


def test_a_follower_becomes_a_member_and_its_weights_count_once_they_were_compared() -> None:
    worker, copy = welcome(), Follow(table(1, source=1), 4)
    assert worker.receive(copy) == [Copy(copy, 0)]
    assert not worker.state.is_lost, "others may go on with what it has"
    assert worker.overwriting() == [Say(Ready(WorkerState(7), 0, 0))]
    assert worker.followed(3, 5, 0) == [], "of an earlier copy"
    assert worker.followed(4, 5, 2) == [Say(Followed(1, 4, 5, 2))]
    assert worker.followed_step == 5
    begun = replace(table(2, step=5, survivors=(1,), source=1), followers=(0,))
    assert worker.receive(begun) == [Build(begun, 0, "copy")]
    assert worker.unfollowed(4, "the source has ended its epoch") == [], "it is over"
    worker.prepared()
    assert worker.begin() == [Say(Step(2, 6))]
    assert worker.state.is_lost
    worker.verified()
    worker.reduced()
    worker.passed(is_last=False)
    assert worker.state == WorkerState(7, 2, 6)


def test_a_follower_that_was_not_compared_has_no_weights() -> None:
    worker = welcome()
    worker.receive(Follow(table(1, source=1), 4))
    worker.overwriting()
    worker.followed(4, 5, 0)
    worker.receive(replace(table(2, step=5, survivors=(1,), source=1), followers=(0,)))
    worker.prepared()
    worker.fail("they differ")
    assert worker.ended() == [Say(Ready(WorkerState(7), 7, 2))]


def test_a_copy_that_has_failed_is_told_unless_another_one_has_begun() -> None:
    worker, copy = welcome(), Follow(table(1, source=1), 4)
    worker.receive(copy)
    assert worker.unfollowed(3, "of an earlier copy") == []
    assert worker.unfollowed(4, "lost") == [Say(Unfollowed(1, 4, "lost"))]
    again = replace(copy, number=5)
    assert worker.receive(again) == [Copy(again, 0)]


def test_a_source_serves_its_own_epoch_only() -> None:
    worker, copy = member(), Follow(table(1), 4)
    assert worker.receive(Follow(table(2), 3)) == [], "of another epoch"
    assert worker.receive(copy) == [Copy(copy, 0)]
    assert worker.phase == "member"
    assert worker.unfollowed(4, "full") == [Say(Unfollowed(1, 4, "full"))]
    worker.receive(fence())
    assert worker.receive(Follow(table(1), 5)) == []


def test_a_name_that_no_message_may_have_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match=r"worker cannot say what it is: .*worker_id"):
        Participant(replace(HELLO, worker_id="wörker"))
