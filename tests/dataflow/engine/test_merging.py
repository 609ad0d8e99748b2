"""Reports of several workers as one: means by rows, digests by rank, versions, and what must not be reported."""

from __future__ import annotations

import math

import pytest
from parts import Model, work_of

import softs_fast.dataflow as df
from softs_fast.dataflow.engine.cutting import parts_of
from softs_fast.dataflow.engine.running import SentStep, digest_of_ranks, mean_numbers
from softs_fast.dataflow.link.results import Result
from softs_fast.dataflow.master.order.steps import Kind, Step
from softs_fast.dataflow.workers.backend import Done
from softs_fast.errors import FlowError

role = df.place(Model, "dp2 tp2", on=[5, 4, 3, 2], name="many")
call = df.call(role.read, "x, i", rows=8, interface=df.Interface.INFERENCE)
STEP = Step(Kind.MAIN, frozenset(role.on))


def done(worker: int, ids: tuple[int, ...] = (), loss: float = 0.0, digest: str = "") -> Done:
    numbers = {"loss": loss} if ids else {}
    return Done(worker, Result(1, 0.5 + worker, ids, numbers=numbers, digest=digest))


def test_numbers_are_means_over_rows() -> None:
    assert mean_numbers([({"a": 1.0}, 3), ({"a": 5.0, "b": 2.0}, 1)]) == {"a": 2.0, "b": 2.0}
    assert mean_numbers([({"a": 7.0}, 0), ({"a": 5.0}, 1)]) == {"a": 5.0}
    assert mean_numbers([({"a": 7.0}, 0)]) == {}
    assert math.isnan(mean_numbers([({"a": math.nan}, 1), ({"a": 1.0}, 1)])["a"])
    for n in range(1, 50):
        assert mean_numbers([({"a": 0.1}, n), ({"a": 0.1}, 3), ({"a": 0.1}, 7)]) == {"a": 0.1}


def test_a_digest_of_one_rank_is_as_it_is_and_others_depend_on_the_order() -> None:
    assert digest_of_ranks(["ab"]) == "ab"
    assert digest_of_ranks([]) == digest_of_ranks(["", ""]) == ""
    assert digest_of_ranks(["ab", "cd"]) != digest_of_ranks(["cd", "ab"])
    assert len(digest_of_ranks(["ab", "cd"])) == 16


@pytest.mark.parametrize("order", [(5, 4, 3, 2), (2, 3, 4, 5), (3, 5, 2, 4)])
def test_reports_are_the_same_in_whatever_order_they_arrive(order: tuple[int, ...]) -> None:
    reports = SentStep(STEP)
    heads = {5: done(5, (1, 2, 3), 1.0, "aa"), 3: done(3, (4,), 5.0, "bb")}
    for worker in order:
        reports.add(heads.get(worker, done(worker)), {5: 7, 3: 6}.get(worker))
    assert [one.worker for one in reports.made(role)] == [5, 3]
    assert reports.numbers(role) == {"loss": 2.0}
    assert reports.digest(role) == digest_of_ranks(["aa", "bb"])
    assert (reports.version, reports.seconds) == (6, 5.5)
    reports.add(Done(2, Result(1, 4.0, read_s=2.0)), None)
    assert reports.seconds == 6.0


def test_evaluations_of_ranks_count_the_same() -> None:
    reports = SentStep(STEP)
    for worker, value in ((5, 1.0), (4, None), (3, 2.0)):
        reports.add(Done(worker, Result(1, numbers={} if value is None else {"a": value})), None)
    assert reports.numbers(role) == {"a": 1.5}


def test_rows_that_a_worker_was_not_given_or_keeps_are_refused() -> None:
    parts = parts_of(work_of(range(8), [5] * 8, [0] * 8), call, 2)
    due = {
        worker: one.ids if one.part is not None and one.part.is_head else () for worker, one in parts.items()
    }
    reports = SentStep(STEP)
    for worker, ids in due.items():
        reports.add(done(worker, ids), None)
    reports.check()
    reports.parts = parts
    reports.check()
    for worker, ids in ((5, ()), (5, due[3]), (4, due[5]), (3, due[3][:-1])):
        wrong = SentStep(STEP)
        wrong.parts = parts
        wrong.add(done(worker, ids), None)
        with pytest.raises(FlowError, match=f"worker {worker} has reported {len(ids)} rows .* had to report"):
            wrong.check()


def test_what_was_reported_before_a_failure_is_returned_once() -> None:
    reports = SentStep(STEP)
    reports.add(done(5, (1,)), None)
    assert [one.worker for one in reports.clear()] == [5]
    assert reports.clear() == []


def test_rows_that_are_not_finite_are_those_of_all_ranks() -> None:
    reports = SentStep(STEP)
    for worker, counts in ((5, {"reward": 2}), (4, {}), (3, {"reward": 1, "value": 3})):
        reports.add(Done(worker, Result(1, ids=(worker,), not_finite=counts)), None)
    assert reports.not_finite() == {"reward": 3, "value": 3}
