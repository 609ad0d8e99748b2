"""Which workers are let in, and when there are enough of them."""

from __future__ import annotations

from dataclasses import fields

import pytest
from driven_job import DrivenJob, open_job

from softs_fast.coordination.job import events
from softs_fast.coordination.job.messages import (
    Fence,
    Leave,
    Refused,
    Table,
    Welcome,
)
from softs_fast.coordination.job.options import JobOptions
from softs_fast.errors import ConfigError

# --- The first epoch ---


def test_a_job_of_fixed_size_opens_when_all_are_ready() -> None:
    job = DrivenJob(3)
    for name in ("a", "b", "c"):
        assert job.hello(name) == [Welcome(77, len(job.conns) - 1)]
    job.ready("a")
    job.ready("c")
    job.wait(100)
    assert job.status.phase == "forming"
    assert job.status.reason == '2 workers are ready, need 3; waiting for seat 1 ("b"), which is not ready'
    job.ready("b")
    table = job.last("a", Table)
    assert [(one.rank, one.seat, one.worker_id, one.address) for one in table.members] == [
        (0, 0, "a", "a:1"),
        (1, 1, "b", "b:1"),
        (2, 2, "c", "c:1"),
    ]
    assert (table.epoch, table.resume_step, table.source_rank, table.survivors) == (1, 0, 0, (0,))
    assert table == job.last("b", Table) == job.last("c", Table)
    assert job.records == [events.Agreed(()), table]


def test_seats_follow_the_launcher() -> None:
    job = DrivenJob(3)
    for name, seat in (("a", 2), ("b", 0), ("c", 1)):
        assert job.hello(name, wanted_seat=seat) == [Welcome(77, seat)]
        job.ready(name)
    assert [member.worker_id for member in job.last("a", Table).members] == ["b", "c", "a"]


def test_the_first_epoch_of_a_job_of_any_size_waits_for_its_window() -> None:
    job = DrivenJob(2, 4)
    for name in ("a", "b", "c"):
        job.hello(name)
        job.ready(name)
        job.wait(0.5)
    assert job.status.phase == "forming"
    job.wait(2.0)
    assert len(job.last("a", Table).members) == 3
    full = DrivenJob(2, 3)
    for name in ("a", "b", "c"):
        full.hello(name)
        full.ready(name)
    assert full.status.phase == "open"


def test_units_and_blocks() -> None:
    unit = DrivenJob(2, 6, multiple_of=2)
    block = DrivenJob(2, 6, block_size=2)
    for job in (unit, block):
        for name, seat in (("a", 0), ("b", 2), ("c", 3)):
            job.hello(name, wanted_seat=seat)
            job.ready(name)
        job.wait(2.5)
    assert [one.seat for one in unit.last("a", Table).members] == [0, 2]
    assert [one.seat for one in block.last("b", Table).members] == [2, 3]


def test_workers_from_a_checkpoint_begin_at_its_step() -> None:
    job = DrivenJob(2)
    for name, committed in (("a", 0), ("b", 40)):
        job.hello(name)
        job.ready(name, committed)
    table = job.last("a", Table)
    assert (table.resume_step, table.source_rank, table.survivors) == (40, 1, (1,))


# --- Refusals ---


@pytest.mark.parametrize(
    ("hello", "code", "text"),
    [
        (
            {"job": "another"},
            "job",
            'worker belongs to job "another"; this is the coordinator of "job"; name the job by job= (torchrun: --rdzv-id,',
        ),
        ({"protocol": 9}, "protocol", "worker speaks version 9 of the protocol"),
        ({"identity": "mallory"}, "identity", 'worker "b" has proven to be "mallory"'),
        ({"wanted_seat": -1}, "protocol", "are from 0 to"),
        ({"engine_epoch": 1 << 60}, "protocol", "are from 0 to"),
    ],
)
def test_refusals_say_why(hello: dict, code: str, text: str) -> None:
    job = DrivenJob(2)
    job.hello("a")
    [refused] = job.hello("b", **hello)
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert text in refused.text
    assert job.conns["b"] in job.closed
    assert job.hello("b") == [Welcome(77, 1)]


@pytest.mark.parametrize("incarnation", [0, 2])
def test_a_process_does_not_displace_one_that_is_connected(incarnation: int) -> None:
    """Whatever its number is: numbers say nothing about which process is the later one."""
    job = open_job("a", "b", lost_after_s=3.0)
    assert job.hello("b", incarnation) == []
    job.wait(2.9)
    assert job.status.phase == "open"
    job.wait(0.2)
    refused = job.last("b", Refused)
    assert (refused.code, refused.held_by) == ("taken", "b")
    assert refused.text.startswith('worker "b" is connected as another process, at b:1; end that process or')
    assert job.conns["b"] in job.closed
    assert job.status.phase == "open"


@pytest.mark.parametrize("incarnation", [0, 2])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_process_takes_the_place_of_one_of_which_the_connection_has_ended(
    incarnation: int, is_first: bool
) -> None:
    """Also if it came before that was known, and if its host has another clock."""
    job = open_job("a", "b")
    before = job.conns["b"]
    if is_first:
        job.tell(events.Gone(before))
        assert job.hello("b", incarnation) == [], "it may have been a blink"
        job.wait(0.06)
    else:
        assert job.hello("b", incarnation) == []
        job.wait(1.0)
        job.tell(events.Gone(before))
        job.wait(0.06)
    assert job.said[job.conns["b"]] == [Welcome(77, 1)]
    assert job.last("a", Fence).cause == "restarted"
    # The process before was stopped, say, and goes on.
    [refused] = job.hello("b", 1)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.held_by) == ("older", "b")
    assert 'another process has taken the place of this one of worker "b", at b:1' in refused.text


def test_spares_that_take_a_seat_again_and_again_are_restarts_too() -> None:
    """Such as processes with names of their own, each of which comes before the seat of the one before is free."""
    job = open_job("a", "b", max_restarts=2, away_s=1.0, rejoin_timeout_s=50.0)
    for number, name in enumerate(("c", "d", "e")):
        job.gone("b" if number == 0 else "bcde"[number])
        job.hello(name)
        job.wait(2.0)
        seats = [one.seat for one in job.said[job.conns[name]] if isinstance(one, Welcome)]
        assert seats == ([None, 1] if number < 2 else [None])
    job.wait(60.0)
    assert job.status.phase == "failed"


def test_a_process_that_was_replaced_while_there_was_no_coordinator_has_its_time_of_grace() -> None:
    job = open_job("a", "b")
    again = DrivenJob(2, records=job.job.records(), reconnect_timeout_s=10.0, lost_after_s=3.0)
    again.hello("a", engine_boot=77, engine_epoch=1)
    assert again.hello("b", 2) == []
    again.wait(9.9)
    assert again.said.get(again.conns["b"], []) == []
    assert again.status.phase == "open"
    again.wait(0.2)
    assert again.last("b", Welcome) == Welcome(77, 1)
    assert again.last("a", Fence).cause == "restarted"


def test_a_blink_of_a_process_lets_no_other_one_in() -> None:
    job = open_job("a", "b")
    before = job.conns["b"]
    job.hello("b", 2)
    newcomer = job.conns["b"]
    job.tell(events.Gone(before))
    job.wait(0.04)
    assert job.hello("b", engine_boot=77, engine_epoch=1)[0] == Welcome(77, 1)
    job.wait(5.0)
    assert isinstance(job.said[newcomer][-1], Refused)
    assert job.status.n_fences == ()


def test_a_seat_of_a_connected_worker_is_waited_for_too() -> None:
    job = open_job("a", "b")
    assert job.hello("c", wanted_seat=0) == []
    job.wait(3.1)
    refused = job.last("c", Refused)
    assert (refused.code, refused.held_by) == ("taken", "a")
    assert refused.text == 'seat 0 ("a") has the seat and is connected, at a:1'
    assert job.hello("d", wanted_seat=0) == []
    job.gone("a")
    job.wait(0.06)
    assert job.last("d", Welcome) == Welcome(77, 0)


def test_newcomers_are_bounded_and_end_with_their_connection_and_with_the_job() -> None:
    job = open_job("a", "b", max_spares=0)
    for incarnation in (2, 3):
        assert job.hello("b", incarnation) == []
    assert isinstance(job.hello("b", 4)[0], Refused), "as many as there are seats and spares"
    job.tell(events.Gone(3))
    assert job.hello("b", 5) == []
    job.tell(events.End("enough"))
    assert job.closed == {1, 2, 4, 5, 6}


def test_spares_wait_for_a_seat() -> None:
    job = open_job("a", "b", max_spares=1, away_s=5.0)
    assert job.hello("c") == [Welcome(77, None)]
    job.ready("c")
    [refused] = job.hello("d")
    assert isinstance(refused, Refused)
    assert refused.code == "full"
    job.gone("b")
    job.wait(1.0)
    assert job.status.phase == "fenced"
    job.ready("a", 3)
    job.wait(3.0)
    assert job.status.phase == "fenced"
    job.wait(1.5)
    assert job.last("c", Welcome) == Welcome(77, 1)
    table = job.last("c", Table)
    assert [member.worker_id for member in table.members] == ["a", "c"]
    assert (table.resume_step, table.source_rank) == (3, 0)


def test_a_seat_that_is_restarted_too_often() -> None:
    job = open_job("a", "b", max_restarts=2, restart_window_s=20.0)
    for incarnation in (2, 3):
        job.gone("b")
        job.wait(0.06)
        assert job.hello("b", incarnation) == [Welcome(77, 1)]
    job.gone("b")
    job.wait(0.06)
    [refused] = job.hello("b", 4)
    assert isinstance(refused, Refused)
    assert refused.code == "restarts"
    assert 'seat 1 ("b") was restarted 2 times in 20 s' in refused.text
    job.wait(21.0)
    assert job.hello("b", 5) == [Welcome(77, 1)]


def test_a_restart_counts_after_a_process_that_has_left() -> None:
    """A program that fails leaves the job on its way out."""
    job = open_job("a", "b", min_workers=1, max_workers=2, max_restarts=2)
    for incarnation in (2, 3, 4):
        job.say("b", Leave("done", is_resting=True))
        job.wait(1.1)
        job.ready("a", 3)
        job.ready("b", 3)
        assert job.last("b", Refused).code == "ended"
        answer = job.hello("b", incarnation)[0]
        if incarnation < 4:
            assert answer == Welcome(77, 1)
            job.ready("b")
            job.ready("a", 3)
    assert isinstance(answer, Refused)
    assert "seat 1 was restarted 2 times in 3600 s" in answer.text


# --- Options ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_workers": 0}, "min_workers of the job is 0; need 1 to 4096"),
        ({"max_workers": 1}, "max_workers of the job is 1; need 2 to 4096"),
        ({"multiple_of": 3}, r"no job has 2 to 2 members in multiples of 3 \(multiple_of 3, block_size 1\)"),
        ({"block_size": 0}, "block_size of the job is 0"),
        ({"max_spares": -1}, "max_spares of the job is -1"),
        ({"max_restarts": -1}, "max_restarts of the job is -1"),
        ({"max_restarts": float("nan")}, "max_restarts of the job is nan"),
        ({"form_timeout_s": 0}, "form_timeout_s of the job is 0; need seconds, 0.05 or more"),
        ({"stalled_after_s": 0}, "stalled_after_s of the job is 0; need seconds, 0.05 or more"),
        ({"away_s": 0.01}, "away_s of the job is 0.01"),
        ({"name": ""}, "name of a job has 0 characters"),
    ],
)
def test_options_that_cannot_be(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JobOptions(**{"name": "job", "min_workers": 2, "max_workers": 2} | options)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [field.name for field in fields(JobOptions) if field.name.endswith("_s")])
def test_a_wait_is_a_number_of_seconds(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} of the job is {value}"):
        JobOptions("job", 1, 2, **{name: value})
