"""Members of a run: ranks, leases, returns, the owner's words."""

from __future__ import annotations

import pytest
from driven_run import DrivenRun, is_refused, joined

from softs_fast.errors import ConfigError
from softs_fast.paramserver.rounds import events
from softs_fast.paramserver.rounds.events import Version
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.wire.answers import Code


def test_ranks_are_the_least_free_ones() -> None:
    run = joined("a", "b", "c")
    run.tell(events.Leave("b"))
    assert run.tell(events.Join("d", "d")) == events.Welcome(1, Version(1, 0))


def test_a_full_run_says_when_to_ask_again() -> None:
    run = joined("a", "b", max_workers=2, dataset_size=10)
    answer = run.tell(events.Join("c", "c"))
    assert is_refused(answer, Code.FULL)
    assert (answer.message, answer.retry_s) == ("the run has as many workers as it can have", 20.0)
    run.tell(events.Leave("a"))
    assert run.tell(events.Join("c", "c")) == events.Welcome(0, Version(1, 0))


def test_the_lost_answer_of_a_join_holds_up_nothing() -> None:
    run = DrivenRun(world_size=1, max_workers=1)
    run.tell(events.Join("ghost", "a"))
    assert run.phase == "waiting"
    assert run.tell(events.Join("a", "a")) == events.Welcome(0, Version(1, 0))
    assert run.tell(events.Seen("ghost")) == events.UNKNOWN
    run.tell(events.Seen("a"))
    assert run.phase == "open"


def test_a_silent_worker_is_a_member_again_with_its_next_request() -> None:
    run = joined("a", "b")
    run.push("b")
    run.wait(30.0, "a")
    assert [one.worker_id for one in run.run.status(run.now_s).members] == ["a"]
    assert run.push("b", Version(1, 0)).again
    assert [one.worker_id for one in run.run.status(run.now_s).members] == ["a", "b"]


def test_a_worker_that_has_left_must_join_again() -> None:
    run = joined("a", "b")
    run.tell(events.Leave("a"))
    assert run.tell(events.Seen("a")) == events.UNKNOWN
    assert run.tell(events.Join("a2", "a", "a")) == events.Welcome(0, Version(1, 0))


def test_a_worker_that_has_failed_is_a_warning() -> None:
    run = joined("a", "b")
    run.tell(events.Leave("a", "it has failed: RuntimeError: no memory", True))
    assert run.one(events.Log) == events.Log(
        'worker "a" (rank 0) is gone: it has failed: RuntimeError: no memory', True
    )


def test_a_join_with_the_old_id_has_its_rank_and_its_counted_push() -> None:
    run = joined("a", "b", "c", quorum=3)
    run.push("b")
    assert run.tell(events.Join("b2", "b", "b")) == events.Welcome(1, Version(1, 0))
    assert run.push("b2", Version(1, 0)).again
    assert run.tell(events.Seen("b")) == events.UNKNOWN
    run.push("a")
    run.push("c")
    assert [one.push.worker_id for one in run.one(events.Apply).shares] == ["a", "b", "c"]


def test_a_member_that_has_these_weights_waits_only_if_it_has_pushed() -> None:
    run = joined("a", "b", quorum=2)
    now = Version(1, 0)
    assert run.tell(events.Pull("a")) == events.Serve(now)
    assert run.tell(events.Pull("a", now)) == events.Serve(now), "it has lost its gradient"
    run.push("a")
    assert run.tell(events.Pull("a", now)) == events.Hold()
    run.push("b")
    assert run.tell(events.Pull("a", now)) == events.Hold()
    run.tell(events.Applied())
    assert run.all(events.Changed)
    assert run.tell(events.Pull("a", now, is_again=True)) == events.Serve(Version(1, 1))


def test_asking_again_is_no_sign_of_life() -> None:
    run = joined("a", lost_after_s=5.0)
    run.push("a")
    for _ in range(4):
        run.tell(events.Pull("a", Version(1, 0), is_again=True), 1.0)
    run.wait(1.5)
    assert run.tell(events.Pull("a", Version(1, 0), is_again=True)) == events.UNKNOWN


@pytest.mark.parametrize("seconds", [20.5, 500.0])
def test_a_server_that_stood_still_removes_no_member(seconds: float) -> None:
    run = joined("a", "b", lost_after_s=20.0)
    run.tell(events.Tick(), seconds)
    assert len(run.run.status(run.now_s).members) == 2
    run.tell(events.Tick(), 19.0)
    assert len(run.run.status(run.now_s).members) == 2


def test_a_kicked_process_stays_out_whatever_its_name() -> None:
    """Other workers of the same machine, which have the same name, are not kicked."""
    run = joined("a", world_size=2, dataset_size=8)
    for worker, process in (("b", "p1"), ("c", "p2")):
        run.tell(events.Join(worker, "host", process=process))
        run.tell(events.Seen(worker))
    assert run.tell(events.Kick("b", "it sends nonsense")) == events.Noted()
    assert run.tell(events.Seen("b")) == events.BANNED
    assert run.tell(events.Seen("c")) == events.Noted()
    again = DrivenRun(run.run.snapshot(), world_size=2, dataset_size=8)
    for one in (run, again):
        assert one.tell(events.Join("b2", "other", process="p1")) == events.BANNED
        assert one.tell(events.Join("b3", "other", "b")) == events.BANNED
        assert isinstance(one.tell(events.Join("d", "host", process="p3")), events.Welcome)
    assert run.tell(events.Kick("x", "?")) == events.UNKNOWN


def test_a_pause_counts_pushes_and_closes_nothing() -> None:
    run = joined("a")
    run.tell(events.Pause("lunch"))
    assert run.push("a") == events.Counted(1, 1)
    assert run.phase == "paused"
    assert run.text == "paused: lunch"
    assert run.tell(events.Pull("a")) == events.Hold()
    run.tell(events.Resume())
    assert run.all(events.Apply)


def test_a_pause_stops_the_time_of_a_round() -> None:
    run = joined("a", "b", quorum=1, round_timeout_s=18.75)
    run.wait(15.0, "a", "b")
    run.push("a")
    run.tell(events.Pause("lunch"))
    run.wait(1000.0, "a", "b")
    run.tell(events.Resume())
    assert not [one for one in run.wait(3.7, "a", "b") if isinstance(one, events.Apply)]
    assert [one for one in run.wait(0.1, "a", "b") if isinstance(one, events.Apply)]


def test_a_step_that_ends_in_a_pause_is_committed() -> None:
    run = joined("a")
    run.push("a")
    run.tell(events.Pause("lunch"))
    run.tell(events.Applied())
    assert run.run.version == Version(1, 1)
    assert run.phase == "paused"


def test_a_resting_worker_holds_up_nothing() -> None:
    run = joined("a", "b", quorum=1)
    run.tell(events.Rest("b"))
    run.push("a")
    assert run.all(events.Apply)
    run.tell(events.Applied())
    run.tell(events.Seen("b"))
    assert run.run.status(0.0).members[1].state == "paused"
    run.tell(events.Pull("b"))
    assert run.run.status(0.0).members[1].state == "active"


def test_a_stop_commits_the_open_round() -> None:
    run = joined("a", "b", quorum=1)
    run.push("a")
    run.tell(events.Stop("enough"))
    assert run.all(events.Apply)
    answer = run.push("b")
    assert isinstance(answer, events.Stale)
    run.tell(events.Applied())
    assert run.one(events.Ended) == events.Ended("enough", False)
    assert run.run.version.number == 1


def test_a_stop_without_a_quorum_ends_at_once() -> None:
    run = joined("a", "b", quorum=2)
    run.push("a")
    run.tell(events.Stop("enough"))
    assert run.one(events.Ended) == events.Ended("enough", False)
    assert run.one(events.Drop).content == 1


def test_a_stop_at_once_is_after_the_step_that_is_under_way() -> None:
    """Weights and version in the last file belong together."""
    run = joined("a", "b", "c", mode="ssp", max_lead=5)
    run.push("a")
    run.push("b")
    run.tell(events.Stop("now", at_once=True))
    assert run.one(events.Drop).content == 2
    assert not run.run.is_over
    run.tell(events.Applied())
    assert run.one(events.Ended) == events.Ended("now", False)
    assert run.one(events.Save).snapshot.version == 1


def test_a_stop_at_once_does_not_close_the_round() -> None:
    run = joined("a", "b", quorum=1)
    run.push("a")
    run.tell(events.Stop("now", at_once=True))
    assert run.one(events.Ended) == events.Ended("now", False)
    assert not run.all(events.Apply)


def test_a_failure_leaves_the_last_file() -> None:
    run = joined("a")
    run.push("a")
    run.tell(events.Stop("the step failed", is_failure=True))
    assert run.one(events.Ended) == events.Ended("the step failed", True)
    assert not run.all(events.Save)
    run.tell(events.Applied())
    assert run.run.version.number == 0


def test_all_members_learn_the_end() -> None:
    run = joined("a", "b", rounds=1)
    run.round("a", "b")
    assert run.run.is_over
    assert not run.run.is_known_by_all
    for worker in "ab":
        assert run.tell(events.Pull(worker, Version(1, 0))) == events.Over("all 1 rounds are done", False)
        assert run.tell(events.Pull(worker)) == events.Serve(Version(1, 1)), "the last step is for all"
    assert run.push("a", Version(1, 0)).again
    assert isinstance(run.push("a"), events.Over)
    for worker in "ab":
        # The answers may have been lost.
        assert not run.run.is_known_by_all
        run.tell(events.Leave(worker))
    assert run.run.is_known_by_all
    assert run.run.next_wake_s() is None


def test_a_restart_begins_a_timeline() -> None:
    run = joined("a", "b")
    run.round("a", "b")
    again = DrivenRun(run.run.snapshot(), world_size=2)
    assert again.run.version == Version(2, 1)
    answer = again.push("a", Version(1, 1))
    assert isinstance(answer, events.Stale)
    assert (answer.timeline, answer.version) == (2, 1)
    assert again.push("a", Version(1, 0)).again, "the weights have it"
    assert again.tell(events.Pull("b", Version(1, 1))) == events.Serve(Version(2, 1))
    # A quorum of one is here: later rounds do not wait for the world.
    assert again.phase == "open"
    over = DrivenRun(run.run.snapshot(), world_size=2, rounds=1)
    assert over.run.is_over


def test_a_push_that_no_step_has_used_is_not_in_the_file() -> None:
    run = joined("a", "b", "c", world_size=2, mode="async", pushes_per_step=2, rounds=9)
    run.push("a")
    run.push("b")
    run.push("c")
    run.tell(events.Applied())
    run.tell(events.Leave("b"))
    snapshot = run.one(events.Save).snapshot if run.all(events.Save) else run.run.snapshot()
    for _ in range(2):
        again = DrivenRun(snapshot, world_size=2, mode="async", pushes_per_step=2, rounds=9)
        assert isinstance(again.push("c", Version(1, 0)), events.Stale), "its step is lost"
        # One that is gone joins with a new id, and the others too: sessions end with a server.
        for old, new in (("a", "a2"), ("b", "b2")):
            assert isinstance(again.tell(events.Join(new, old, old)), events.Welcome)
            assert again.push(new, Version(1, 0)).again
        snapshot = again.run.snapshot()


def test_a_worker_that_is_started_again_gets_its_own_rank() -> None:
    """Its samples go by its rank: with another one they are trained on twice, and its own never."""
    run = joined("a", "b", lost_after_s=9.0)
    assert run.tell(events.Leave("a"))
    run.wait(10.0)
    assert run.tell(events.Join("b2", "b", process="p")) == events.Welcome(1, Version(1, 0)), "both are gone"
    run.tell(events.Join("a2", "a", process="q"))
    run.tell(events.Seen("a2"), 1.0)
    run.tell(events.Seen("b2"))
    # Killed, and started again at once: its lease has not ended.
    answer = run.tell(events.Join("b3", "b", process="r"), 1.0)
    assert is_refused(answer, Code.FULL)
    assert '"b" (rank 1)' in answer.message
    run.wait(7.0, "a2")
    answer = run.tell(events.Join("b4", "b", process="r"))
    assert is_refused(answer, Code.FULL)
    assert '"a"' not in answer.message, "it lives"
    run.wait(3.0, "a2")
    assert run.tell(events.Join("b5", "b", process="r")) == events.Welcome(1, Version(1, 0))


def test_a_worker_beyond_the_world_is_one_once_the_world_lives() -> None:
    run = joined("a", "b", lost_after_s=9.0)
    assert is_refused(run.tell(events.Join("c", "a", process="p"), 1.0), Code.FULL)
    run.wait(2.0, "a", "b")
    assert run.tell(events.Join("c2", "a", process="p")) == events.Welcome(2, Version(1, 0))
    # Its rank is free once more, but one of the world is, too: that one has samples of its own.
    run.tell(events.Leave("c2"))
    run.tell(events.Leave("b"))
    assert run.tell(events.Join("c3", "a", process="r")) == events.Welcome(1, Version(1, 0))


def test_an_attempt_to_join_proves_nothing_once_its_process_has_joined() -> None:
    run = joined("a", lost_after_s=9.0)
    assert is_refused(run.tell(events.Join("b", "b", process="p")), Code.FULL)
    run.tell(events.Leave("a"))
    assert run.tell(events.Join("b2", "b", process="p")) == events.Welcome(0, Version(1, 0))
    run.tell(events.Leave("b2"), 1.0)
    run.join("c")
    assert is_refused(run.tell(events.Join("b3", "b", "b2", process="p"), 1.0), Code.FULL), "c may be gone"


def test_attempts_to_join_are_bounded() -> None:
    run = joined("a")
    for number in range(1100):
        assert is_refused(run.tell(events.Join(f"w{number}", "w", process=f"p{number}")), Code.FULL)
    assert len(run.run._state.members._attempts) == 1024


def test_a_member_of_a_run_that_is_over_joins_for_the_last_weights() -> None:
    run = joined("a", rounds=1)
    run.round("a")
    again = DrivenRun(run.run.snapshot(), world_size=1, rounds=1)
    assert again.run.is_over
    assert isinstance(again.tell(events.Join("new", "new")), events.Over)
    assert again.tell(events.Join("a2", "a", "a")) == events.Welcome(0, Version(2, 1))
    assert again.tell(events.Pull("a2")) == events.Serve(Version(2, 1))


def test_gone_members_are_bounded() -> None:
    run = DrivenRun(world_size=1)
    for number in range(1200):
        run.join(f"w{number}")
        run.tell(events.Leave(f"w{number}"))
    assert run.tell(events.Join("x", "x", "w0")) == events.Welcome(0, Version(1, 0))
    assert len(list(run.run._state.members)) <= 1025


@pytest.mark.parametrize(
    "wrong",
    [
        {"world_size": 0},
        {"mode": "other"},
        {"quorum": 3},
        {"lost_after_s": 0.0},
        {"round_timeout_s": float("nan")},
        {"max_workers": 1},
        {"rounds": 0},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="of the run is"):
        RunOptions(**({"world_size": 2, "rounds": 10} | wrong))  # type: ignore[arg-type]
