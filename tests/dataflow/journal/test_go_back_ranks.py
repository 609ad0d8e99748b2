"""A rank of a role on several workers dies, or the master goes on elsewhere: the bits are the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from parallel_processes import in_meeting

import softs_fast.dataflow as df

N = 5


def run(folder: Path, n_steps: int, kill_at: int = 0) -> list[tuple[int, bool, Any]]:
    """Run; a rank is killed after a step."""
    flow, workers = in_meeting("journal_flow", "make_ranks", folder=str(folder))
    steps = []
    with flow:
        for step in flow.steps(n_steps):
            steps.append((step.number, step.repeated, summary(step)))
            if step.number == kill_at and not step.repeated:
                os.kill(workers.processes[1].pid, signal.SIGKILL)
    return steps


def summary(step: df.FlowStep) -> Any:
    return sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return [what for _, _, what in run(tmp_path_factory.mktemp("undisturbed") / "j", N)]


def test_a_rank_that_is_killed(tmp_path: Path, undisturbed: list[Any]) -> None:
    steps = run(tmp_path / "j", N, kill_at=3)
    assert [(number, repeated) for number, repeated, _ in steps] == [
        *((1, False), (2, False), (3, False), (3, True), (4, False), (5, False))
    ]
    assert [what for number, repeated, what in steps if number != 3 or repeated] == undisturbed


def test_a_run_that_goes_on(tmp_path: Path, undisturbed: list[Any]) -> None:
    first, second = run(tmp_path / "j", 3), run(tmp_path / "j", N)
    assert [number for number, _, _ in second] == [3, 4, 5]
    assert [what for _, _, what in (*first[:2], *second)] == undisturbed
