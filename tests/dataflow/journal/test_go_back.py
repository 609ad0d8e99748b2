"""kill -9 of a worker with weights that training has changed: all go back to the last common save, and the bits are the same."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import ForkedWorkers, in_forks, stop
from journal_flow import same, weights_of

import softs_fast.dataflow as df
from softs_fast.errors import FlowError

N = 6


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed") / "j"
    flow, _ = in_forks("journal_flow", "make_flow", folder=str(folder))
    steps = [(step.number, summary(step)) for step in run(flow)]
    yield steps, weights_of(folder)
    torch.set_num_threads(n_threads)


def run(flow: df.Flow) -> list[df.FlowStep]:
    torch.manual_seed(3)  # for functions without a role
    with flow:
        return list(flow.steps(N))


def summary(step: df.FlowStep) -> list[Any]:
    return sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls)


def check_steps(steps: list[df.FlowStep], expected: list[Any]) -> int:
    """What counts is the last step of each number; returns how many were done again."""
    last = {step.number: summary(step) for step in steps}
    assert sorted(last.items()) == expected
    seen: set[int] = set()
    for step in steps:
        assert step.repeated == (step.number in seen)
        seen.add(step.number)
    return len(steps) - len(last)


@pytest.mark.parametrize(("place", "n"), [("train", 4), ("generate", 7), ("save", 12)])
def test_a_worker_that_kills_itself(
    place: str, n: int, tmp_path: Path, undisturbed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    flow, _ = in_forks(
        "journal_flow", "make_flow", folder=str(tmp_path / "j"), dies=f"{place} {n} {tmp_path}"
    )
    steps = run(flow)
    assert (tmp_path / f"died-{place}").exists()
    check_steps(steps, undisturbed[0])
    assert same(weights_of(tmp_path / "j"), undisturbed[1])
    (text,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert re.search(
        r"worker \d is lost: process \d+: signal SIGKILL; ticket \d+, .* was open there.*; all workers start again from "
        r"the common save of step \d, and steps? \d (to \d are|is) done again \(start 1 of at most 3\)",
        text,
    )


def test_calls_by_hand_of_a_flow_that_went_back_have_an_answer(tmp_path: Path) -> None:
    flow, workers = in_forks("journal_flow", "make_flow", folder=str(tmp_path / "j"))
    with flow:
        next(flow.steps(1))
        pid = workers.processes[2].pid
        stop(pid)
        call = flow.post("gen.generate", flow.fetch(4))
        flow.flush(call)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(
            FlowError, match=r"call \d+ of gen.generate has no answer: the flow has gone back"
        ):
            call.result()
        # The second step is asked for, and the first one had not been saved.
        assert [(step.number, step.repeated) for step in flow.steps(1)] == [(1, True), (2, False)]


def test_starts_are_not_endless(tmp_path: Path) -> None:
    flow, workers = in_forks(
        "journal_flow", "make_flow", folder=str(tmp_path / "j"), save_every=99, max_starts=1
    )
    with flow:
        steps = flow.steps(N)
        for _ in range(2):
            next(steps)
            os.kill(workers.processes[0].pid, signal.SIGKILL)
        with pytest.raises(FlowError, match=r"worker 0 is lost: process \d+: signal SIGKILL"):
            next(steps)
    # A later program goes on from there.
    flow, _ = in_forks("journal_flow", "make_flow", folder=str(tmp_path / "j"), save_every=99)
    with flow:
        assert [step.number for step in flow.steps(1)] == [1]


def test_a_worker_that_cannot_be_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, workers = in_forks("journal_flow", "make_flow", folder=str(tmp_path / "j"), save_every=99)
    real, n_starts = ForkedWorkers.start, [0]

    def start(self: ForkedWorkers) -> Any:
        n_starts[0] += 1
        if n_starts[0] > 1:
            raise FlowError("the workers of the flow could not begin: no device")
        return real(self)

    monkeypatch.setattr(ForkedWorkers, "start", start)
    steps = flow.steps(N)
    with flow:
        next(steps)
        os.kill(workers.processes[0].pid, signal.SIGKILL)
        with pytest.raises(FlowError, match="no device"):
            list(steps)
    assert n_starts[0] == 4


def test_a_save_counts_only_if_all_workers_took_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that is started again by itself ends while it saves: that save is dropped, and later ones have all."""
    flow, workers = in_forks(
        "journal_flow", "make_flow", max_restarts=1, folder=str(tmp_path / "j"), dies=f"other 3 {tmp_path}"
    )
    numbers = []
    with flow:
        for step in flow.steps(N):
            numbers.append(step.number)
            folders = [
                one for one in (tmp_path / "j").glob("save-*") if not (one / "worker-2/state.pt").exists()
            ]
            assert not folders
    assert numbers == list(range(1, N + 1))  # the flow has not gone back
    assert workers.left == 0
    texts = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert (
        sum(
            "there is no common save of step 4, as a worker was lost; the save of step 2 stays" in text
            for text in texts
        )
        == 1
    )
    assert weights_of(tmp_path / "j")[0][0] == N
