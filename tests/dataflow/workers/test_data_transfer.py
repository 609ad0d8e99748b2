"""`data_transfer` of worker processes on one node, the time of reading, and readers of a process that dies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flow_processes import in_forks
from flow_threads import in_threads
from flows import losses, summary
from restart_flow import in_order
from transfer_flow import make_transfers

from softs_fast.dataflow.link.messages import MoveTask


def test_on_one_node_nothing_is_brought() -> None:
    without, _ = in_threads(lambda: make_transfers(moves=False))
    flow, workers = in_threads(make_transfers)
    assert summary(flow, 3) == summary(without, 3)
    assert not [one for _, one in workers.hub.sent if isinstance(one, MoveTask)]


def test_the_reading_of_a_main_part_has_its_own_time_and_slice(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    flow, _ = in_threads(lambda: make_transfers(moves=False, trace=path))
    with flow:
        (step,) = flow.steps(1)
    (train,) = [one for one in step.calls if one.function == "actor.train"]
    assert list(train.seconds) == ["note", "data_transfer", "main"]
    assert train.seconds["data_transfer"] > 0
    assert step.seconds["actor.train: data_transfer"] == train.seconds["data_transfer"]
    slices = [one for one in json.loads(path.read_text()) if one["ph"] == "X" and one["args"]["step"] == 1]
    own = sorted((one for one in slices if one["tid"] == 2), key=lambda one: one["ts"])
    assert [one["name"] for one in own] == ["note", "data_transfer", "actor.train"]
    assert own[1]["cat"] == "move"
    assert own[1]["dur"] == pytest.approx(train.seconds["data_transfer"] * 1e6, abs=1.0)
    assert own[1]["ts"] + own[1]["dur"] == pytest.approx(own[2]["ts"], abs=1.0)
    assert own[2]["dur"] == pytest.approx(train.seconds["main"] * 1e6, abs=1.0)


@pytest.mark.parametrize("when", ["between two steps", "before the main part"])
def test_a_process_that_dies_with_rows_that_others_need(tmp_path: Path, when: str) -> None:
    """The worker that made rows is killed: no function trains twice with a row, and no hook runs twice for a call."""
    marks = tmp_path / "marks"
    undisturbed, _ = in_threads(make_transfers)
    with undisturbed:
        expected = losses(undisturbed, 3)
    flow, workers = in_forks("transfer_flow", "make_transfers", max_restarts=1, marks=str(marks))
    with flow:
        found = losses(flow, 1)
        if when == "between two steps":
            workers.processes[1].kill()
            workers.processes[1].join(45.0)
        else:
            marks.with_suffix(".kill").touch()
        found += losses(flow, 2)
        assert flow.ask("stats")["restarts"] == 1
    lines = [[int(word) for word in line.split()] for line in marks.read_text().splitlines()]
    assert lines[:3] == in_order(3)
    assert found == expected
