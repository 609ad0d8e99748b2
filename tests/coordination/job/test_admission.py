"""Which workers are let in, and when there are enough of them."""

from __future__ import annotations

import pytest
from driven_job import DrivenJob, open_job

from softs_fast.coordination.job import events
from softs_fast.coordination.job.messages import (
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
    assert job.records == [events.Opened(table)]


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
    unit = DrivenJob(2, 6, unit=2)
    block = DrivenJob(2, 6, block=2)
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
        ({"wanted_seat": 0}, "taken", 'seat 0 ("a") is connected from a:1; it has the seat'),
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


def test_an_older_process_is_refused_while_a_later_one_runs() -> None:
    job = open_job("a", "b")
    [refused] = job.hello("b", 0)
    assert isinstance(refused, Refused)
    assert (refused.code, refused.held_by) == ("older", "b")
    assert "runs as a later process than this one, at b:1" in refused.text
    assert job.status.phase == "open"


def test_spares_wait_for_a_seat() -> None:
    job = open_job("a", "b", spares=1, away_s=5.0)
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
    job = open_job("a", "b", restarts=2, restarts_s=100.0)
    for incarnation in (2, 3):
        assert isinstance(job.hello("b", incarnation)[0], Welcome)
    [refused] = job.hello("b", 4)
    assert isinstance(refused, Refused)
    assert refused.code == "restarts"
    assert 'seat 1 ("b") was restarted 2 times in 100 s' in refused.text
    job.wait(101.0)


# --- Options ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_size": 0}, "min_size of the job is 0; need 1 to 4096"),
        ({"max_size": 1}, "max_size of the job is 1; need 2 to 4096"),
        ({"unit": 3}, r"no job has 2 to 2 members in multiples of 3 \(unit 3, block 1\)"),
        ({"block": 0}, "block of the job is 0"),
        ({"spares": -1}, "spares of the job is -1"),
        ({"restarts": -1}, "restarts of the job is -1"),
        ({"window_s": float("nan")}, "window_s of the job is nan"),
        ({"away_s": 0.01}, "away_s of the job is 0.01"),
        ({"name": ""}, "name of a job has 0 characters"),
    ],
)
def test_options_that_cannot_be(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JobOptions(**{"name": "job", "min_size": 2, "max_size": 2} | options)
