"""kill -9 of worker processes in each phase: they are started again with the same bits, or named with process and signal."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path

import pytest
from flow_processes import in_forks, in_meeting, stop
from flows import ROWS, called, losses, make_flow, post, summary
from restart_flow import in_order, make_restarting, trained
from waiting import WATCHDOG_S

from softs_fast.errors import FlowError


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[int, int, float]]:
    with make_restarting() as flow:
        return losses(flow, 4)


@pytest.mark.parametrize(
    ("place", "n_restarts"), [("main", 1), ("hook", 1), ("main main", 2), ("main setup setup", 1)]
)
def test_a_generator_that_dies_is_started_again(
    tmp_path: Path,
    undisturbed: list[tuple[int, int, float]],
    caplog: pytest.LogCaptureFixture,
    place: str,
    n_restarts: int,
) -> None:
    marks = tmp_path / "marks"
    flow, _ = in_forks("restart_flow", "make_restarting", max_restarts=5, marks=str(marks), place=place)
    with caplog.at_level(logging.WARNING, "softs_fast.dataflow"), flow:
        assert losses(flow, 4) == undisturbed
        stats = flow.ask("stats")
    assert marks.read_text().split() == place.split()
    assert trained(marks) == in_order(4)
    assert stats["restarts"] == n_restarts
    warnings = [record.getMessage() for record in caplog.records]
    assert sum("is lost" in one for one in warnings) == n_restarts
    assert re.fullmatch(
        r"(?s)worker 1 is lost: process .*signal SIGKILL; .*; it is started again", warnings[0]
    )
    counts = [re.match(r"(\d+) rows are made again", one) for one in warnings]
    assert sum(int(one[1]) for one in counts if one) == stats["made_again"]


@pytest.mark.parametrize("worker", [1, 2])
@pytest.mark.parametrize("max_age", [0, 1])
def test_a_worker_that_is_killed_between_steps(
    tmp_path: Path, undisturbed: list[tuple[int, int, float]], worker: int, max_age: int
) -> None:
    marks = tmp_path / "marks"
    flow, workers = in_forks(
        "restart_flow", "make_restarting", max_restarts=5, marks=str(marks), max_age=max_age
    )
    found = []
    with flow:
        for _ in range(4):
            found += losses(flow, 1)
            # The one before may not be needed yet, and is killed again then.
            workers.processes[worker].kill()
            workers.processes[worker].join(WATCHDOG_S)
        stats = flow.ask("stats")
    assert trained(marks)[:4] == in_order(4)
    assert [rows for _, rows, _ in found] == [ROWS] * 4
    assert 1 <= stats["restarts"] <= 3
    if max_age == 0:
        assert found == undisturbed


def test_a_generator_of_a_role_on_several_workers_is_started_again(
    tmp_path: Path, undisturbed: list[tuple[int, int, float]]
) -> None:
    arguments = {"layout": "dp2", "marks": str(tmp_path / "marks"), "place": "main hook"}
    flow, workers = in_meeting("restart_flow", "make_restarting", max_restarts=3, **arguments)
    with flow:
        found = losses(flow, 3)
        assert flow.ask("stats")["restarts"] == 2
    assert workers.left == 1
    assert [loss for _, _, loss in found] == pytest.approx([loss for _, _, loss in undisturbed[:3]], rel=1e-4)


def test_a_posted_call_has_its_answer_and_is_not_repeated(tmp_path: Path) -> None:
    """After that, the worker that trains is lost, and is not started again."""
    marks = tmp_path / "marks"
    flow, workers = in_forks("restart_flow", "make_restarting", max_restarts=5, marks=str(marks))
    with flow:
        pid = workers.processes[1].pid
        stop(pid)
        ids = flow.fetch(ROWS)
        calls = [post(flow, "gen.generate", ids[:4]), post(flow, "gen.generate", ids[4:])]
        with pytest.raises(TimeoutError, match="inside: worker 1"):
            calls[0].result(timeout_s=0.2)
        os.kill(pid, signal.SIGKILL)
        for call in calls:
            with pytest.raises(
                FlowError, match=f"call {call.number} of gen.generate failed: worker 1 is lost: process {pid}"
            ):
                call.result(timeout_s=WATCHDOG_S)
        assert called(flow, "gen.generate", ids[:4]).ids == ids[:4]
        assert losses(flow, 1)[0][1] == ROWS
        assert (trained(marks), workers.left) == (in_order(1), 4)
        os.kill(workers.processes[0].pid, signal.SIGKILL)
        with pytest.raises(FlowError, match="worker 0 is lost"):
            losses(flow, 1)
    assert workers.left == 4


@pytest.mark.parametrize("place", ["setup", "main", "hook", "evaluate"])
def test_a_worker_that_kills_itself(place: str) -> None:
    flow, workers = in_forks("flows", "make_mortal", place=place)
    with pytest.raises(FlowError, match=r"worker 1 is lost: process \d+: signal SIGKILL") as caught, flow:
        next(flow.steps(1))
    assert place == "setup" or re.search(r"call \d of gen.generate", str(caught.value))
    assert not workers.processes


def test_real_processes_do_the_same_as_one() -> None:
    flow, _ = in_forks("flows", "make_flow", n_workers=2)
    assert summary(flow, 2) == summary(make_flow(n_workers=2), 2)
