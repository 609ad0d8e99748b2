"""A worker that trains something else than its job is refused by what differs, whichever way it comes."""

from __future__ import annotations

import random

import pytest
from driven_job import DrivenJob, open_job
from seeds import noted

from softs_fast.coordination.job import events
from softs_fast.coordination.job.events import Agreed
from softs_fast.coordination.job.messages import (
    CheckpointBegin,
    CheckpointEnd,
    Contract,
    Leave,
    Refused,
    Table,
    Term,
    Welcome,
)


def terms(**values: str) -> Contract:
    return tuple(Term(name, value) for name, value in values.items())


OURS, FOREIGN = terms(product="1", batch="8"), terms(product="1", batch="4")
DIFFERS = "trains something else: its 'batch' is '4', and that of"


def joined_job(*names: str, **options: object) -> DrivenJob:
    """Return a job in its first epoch, which trains OURS."""
    job = DrivenJob(len(names), 4, **options)
    for name in names:
        job.hello(name, contract=OURS)
        job.ready(name)
    job.wait(2)
    assert job.status.size == len(names)
    return job


def refusal(job: DrivenJob, name: str) -> Refused:
    refused = job.last(name, Refused)
    assert (refused.code, job.conns[name] in job.closed) == ("contract", True)
    return refused


@pytest.mark.parametrize(
    ("contract", "text"),
    [
        (FOREIGN, "its 'batch' is '4', and that of the job is '8'"),
        (terms(product="2", batch="4"), "its 'batch' is '4', and that of the job is '8'"),
        (terms(product="1"), "its 'batch' is missing, and that of the job is '8'"),
        ((), "its 'batch' is missing, and that of the job is '8'"),
        (terms(product="1", batch="8", seed="3"), "its 'seed' is '3', and that of the job is missing"),
    ],
)
def test_the_first_term_that_differs_is_named(contract: Contract, text: str) -> None:
    """To the worker and in the log; the job goes on."""
    job = joined_job("a")
    job.hello("b", contract=contract)
    assert text in refusal(job, "b").text
    assert f'worker "b" is refused: worker "b" trains something else: {text}' in job.log[-1]
    assert (job.status.phase, job.status.epoch) == ("open", 1)


def test_the_order_of_the_terms_does_not_matter() -> None:
    assert joined_job("a").hello("b", contract=OURS[::-1]) == [Welcome(77, 1)]


def test_before_the_first_epoch_those_that_are_there_decide() -> None:
    job = DrivenJob(2, lost_after_s=3.0)
    job.hello("a", contract=OURS)
    assert job.hello("b", contract=FOREIGN) == []
    job.wait(3)
    assert f"{DIFFERS} seat 0 (\"a\") is '8'" in refusal(job, "b").text
    assert refusal(job, "b").held_by == "a"
    # A try that was ended by hand may be followed by another one.
    assert job.hello("b", contract=FOREIGN) == []
    job.gone("a")
    job.wait(5)
    assert isinstance(job.last("b", Welcome), Welcome)
    job.gone("b")
    job.wait(1)
    assert job.hello("b", 2, contract=OURS) == [Welcome(77, 1)]


def test_a_seat_that_is_kept_decides_too() -> None:
    """Else the worker that returns to it would train beside the other one."""
    job = DrivenJob(2, lost_after_s=3.0)
    job.hello("a", contract=OURS)
    job.gone("a")
    job.wait(1)
    assert job.hello("b", contract=FOREIGN) == []
    job.hello("a", contract=OURS)
    job.wait(3)
    assert DIFFERS in refusal(job, "b").text
    job.gone("a")
    job.wait(5)
    assert job.hello("b", contract=FOREIGN) == [Welcome(77, 1)]
    # Its seat was not kept any longer.
    assert job.hello("a", contract=OURS) == []
    job.wait(3)
    assert refusal(job, "a").held_by == "b"


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_worker_that_returns_to_its_seat(incarnation: int) -> None:
    """The same process on a new connection, or a later one under its name."""
    job = joined_job("a", "b")
    job.gone("b")
    job.wait(0.01)
    job.hello("b", incarnation, contract=FOREIGN)
    assert f"{DIFFERS} the job is '8'" in refusal(job, "b").text
    assert job.status.phase == "open"
    job.hello("b", contract=OURS)
    assert job.last("b", Table).epoch == 1


def test_a_job_that_has_lost_all_its_workers_still_trains_the_same() -> None:
    job = joined_job("a")
    job.gone("a")
    job.wait(30)
    job.hello("b", contract=FOREIGN)
    assert DIFFERS in refusal(job, "b").text


def test_a_process_that_waits_is_judged_again_after_the_first_epoch() -> None:
    job = DrivenJob(1, 2, lost_after_s=30.0)
    job.hello("a", contract=OURS)
    assert job.hello("b", contract=FOREIGN) == []
    job.ready("a")
    job.wait(2)
    assert "and that of the job is '8'" in refusal(job, "b").text


def test_a_coordinator_that_was_killed_knows_what_its_job_trains() -> None:
    """From what it has written as it went, and from a file that was replaced; before any member is back."""
    job = joined_job("a", "b")
    assert job.records[0] == Agreed(OURS)
    for records in (job.records, job.job.records()):
        again = DrivenJob(2, 4, records=records)
        for name in ("c", "b"):
            again.hello(name, contract=FOREIGN)
            assert f"{DIFFERS} the job is '8'" in refusal(again, name).text
        again.hello("a", contract=OURS)
        assert isinstance(again.last("a", Welcome), Welcome)
        assert Agreed(OURS) in again.job.records()


def test_workers_without_a_contract_are_a_job_too() -> None:
    job = open_job("a")
    again = DrivenJob(1, 2, records=job.job.records())
    again.hello("b", contract=OURS)
    assert "its 'batch' is '8', and that of the job is missing" in refusal(again, "b").text
    assert all(Agreed(()) in records for records in (job.records, again.job.records()))


def test_a_coordinator_with_a_state_file_that_does_not_tell_learns_what_the_job_trains() -> None:
    """Of an older version: the members of its epoch say so, and the next epoch decides."""
    job = joined_job("a", "b")
    again = DrivenJob(2, 4, records=[one for one in job.job.records() if not isinstance(one, Agreed)])
    assert isinstance(again.hello("a", contract=OURS)[0], Welcome)
    # It waits as long as the connection of the one that differs may end.
    assert again.hello("b", contract=FOREIGN) == []
    again.wait(5)
    assert DIFFERS in refusal(again, "b").text
    again.hello("b", 2, contract=OURS)
    for name in "ab":
        again.ready(name)
    again.wait(2)
    assert (again.status.phase, again.status.epoch) == ("open", 2)
    assert Agreed(OURS) in again.records
    assert Agreed(OURS) in again.job.records()


def test_after_a_job_has_ended_its_state_file_takes_another_one() -> None:
    """Of another contract and fewer seats; checkpoints of which the coordinator knows stay."""
    job = joined_job("a", "b")
    for name in "ab":
        job.say(name, CheckpointBegin(1, 5, "p"))
    for name in "ab":
        job.say(name, CheckpointEnd(1, 5, "p"))
    for name in "ab":
        job.say(name, Leave("done", is_resting=True))
    assert job.status.phase == "ended"
    for records in (job.records, job.job.records()):
        again = DrivenJob(1, 1, records=records)
        assert again.hello("c", contract=FOREIGN) == [Welcome(77, 0)]
        again.ready("c")
        again.wait(2)
        assert again.last("c", Table).checkpoint == "p"
        assert Agreed(FOREIGN) in again.job.records()


def test_a_job_that_has_failed_is_no_other_one_after_a_restart() -> None:
    job = joined_job("a", rejoin_timeout_s=5.0)
    job.gone("a")
    job.wait(60)
    assert job.status.phase == "failed"
    again = DrivenJob(1, 4, records=job.job.records())
    again.hello("b", contract=FOREIGN)
    assert DIFFERS in refusal(again, "b").text


def test_histories() -> None:
    """All that are connected train the same at each moment, and all epochs of a job do."""
    n_tables = n_refused = 0
    for seed in range(300):
        with noted(seed):
            chance = random.Random(seed)
            job = DrivenJob(*chance.choice([(2, 2), (1, 3)]))
            trained: set[Contract] = set()
            for _ in range(60):
                name = chance.choice("abc")
                contract = chance.choice([OURS, FOREIGN])
                is_there = name in job.conns
                match chance.choice(["hello", "hello", "ready", "ready", "wait", "gone", "again", "resize"]):
                    case "hello":
                        job.hello(name, chance.choice([1, 1, 2]), contract=contract)
                    case "ready" if is_there:
                        job.ready(name)
                    case "gone" if is_there:
                        job.gone(name)
                    case "wait":
                        job.wait(chance.choice([0.01, 1.0, 4.0]))
                    case "resize":
                        job.tell(events.Resize(1, chance.choice([2, 3])))
                    case "again":
                        job = DrivenJob(1, 3, records=job.job.records())
                state = job.job._state
                there = {one.contract for one in state.seats.by_conn.values()}
                assert len(there) <= 1
                if job.status.phase == "open":
                    trained |= there
                assert len(trained) <= 1
            n_tables += bool(trained)
            n_refused += any(
                one.code == "contract"
                for said in job.said.values()
                for one in said
                if isinstance(one, Refused)
            )
    assert n_tables > 100
    assert n_refused > 50
