"""Common saves of flows with datasets on workers hold positions and numbers of elements; the same rows come again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_processes import in_forks
from flow_threads import in_threads
from shard_flow import GROUP, make, make_other

import softs_fast.dataflow as df
from softs_fast.dataflow.engine.admission import Sources
from softs_fast.dataflow.process.state import files
from softs_fast.errors import ConfigError


def trained(steps: list[df.FlowStep]) -> dict[int, list[Any]]:
    """Return by step what was trained with; of steps that were done again the last counts."""
    return {
        step.number: [(one.ids, one.digest) for one in step.calls if one.function == "trainer.train"]
        for step in steps
    }


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, list[Any]]:
    with make("dp2", 2) as flow:
        return trained(list(flow.steps()))


@pytest.mark.parametrize("kind", ["sequence", "iterable"])
@pytest.mark.parametrize("max_age", [0, 1])
@pytest.mark.parametrize("is_in_threads", [False, True])
def test_a_program_that_starts_again_goes_on_with_the_next_elements(
    tmp_path: Path, undisturbed: dict[int, list[Any]], kind: str, max_age: int, is_in_threads: bool
) -> None:
    def make_one() -> df.Flow:
        return make("dp2", 2, kind, max_age=max_age, folder=str(tmp_path / "j"), save_every=1)

    found: list[df.FlowStep] = []
    for n in (2, 4, None):
        flow = in_threads(make_one)[0] if is_in_threads else make_one()
        with flow:
            # The save of the last step may not have been begun: then the step is done again.
            assert len(trained(found)) - 1 <= flow.ask("stats")["steps"] <= len(trained(found))
            # Groups of rows that were in the flow, and are not complete, come first, with their ids.
            found += flow.steps(n)
            assert n is None or found[-1].number == n
    assert trained(found) == undisturbed


def test_a_save_has_numbers_of_elements_and_no_value(tmp_path: Path) -> None:
    with make("dp2", 2, max_age=1, folder=str(tmp_path / "j"), save_every=1) as flow:
        list(flow.steps(2))
    save = max((tmp_path / "j").glob("save-*"))
    found = files.read(save / "master.pt")
    # Elements 4 to 7 of both shards are in groups that are not complete; slots of a step were free.
    assert found["items"] == [{"shard": i % 2, "number": i // 2} for i in range(8, 8 + len(found["items"]))]
    assert len(found["items"]) >= 4
    taken = found["sources"]["train"]["shards"]
    assert sum(taken) == 8 + len(found["items"])
    assert abs(taken[0] - taken[1]) <= 1


def test_rows_that_functions_had_made_come_with_their_elements(tmp_path: Path) -> None:
    def make_one() -> df.Flow:
        return make("dp2", 2, max_age=1, folder=str(tmp_path / "j"), save_every=1)

    with make_one() as flow:
        list(flow.steps(2))
    flow, _ = in_threads(make_one)
    with flow:
        held = flow._session.runner.held
        ids = [row_id for row_id in flow._session.runner.master.rows._rows if "y" in held.columns(row_id)]
        assert ids
        values: dict[str, Any] = {name: flow.values(ids, name) for name in ("prompt", "y")}
        assert all(torch.equal(y, 2 * x) for x, y in zip(values["prompt"], values["y"], strict=True))
        # Elements are at their heads; what functions had made is where the save was read.
        assert {place.worker for place in held.places(ids, "prompt")} == {0, 1}
        (step,) = flow.steps(3)
        assert not {
            row_id for one in step.calls if one.function == "maker.double" for row_id in one.ids
        } & set(ids)


@pytest.mark.parametrize("kind", [pytest.param("sequence", marks=pytest.mark.slow), "iterable"])
def test_all_go_back_when_a_worker_that_trains_is_killed(tmp_path: Path, kind: str) -> None:
    with make(max_age=1) as alone:
        undisturbed = trained(list(alone.steps()))
    arguments: dict[str, Any] = {"kind": kind, "folder": str(tmp_path / "j"), "max_age": 1}
    flow, workers = in_forks("shard_flow", "make", **arguments)
    steps: list[df.FlowStep] = []
    with flow:
        for step in flow.steps():
            steps.append(step)
            if step.number == 3 and not step.repeated:
                os.kill(workers.processes[1].pid, signal.SIGKILL)
        assert flow._backend._store.n_bytes == 0  # type: ignore[attr-defined]
    assert 3 in [step.number for step in steps if step.repeated]
    assert trained(steps) == undisturbed


def test_a_journal_of_another_dataset_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "j")
    with make("dp2", 2, folder=folder, save_every=1) as flow:
        list(flow.steps(1))
    with pytest.raises(ConfigError, match=r"source of train: dataset maker\.prompts"), make_other(folder):
        pass


def test_positions_are_those_of_the_shards() -> None:
    flow = make("dp2", 2)
    sources: Sources = flow._settings.sources
    assert sources.state("train") == {"shards": [0, 0]}
    sources.restore("train", 5, {"shards": [3, 2]})
    assert (sources.state("train"), sources.n_read) == ({"shards": [3, 2]}, {"train": 5})
    with flow:
        ids = flow.fetch(2 * GROUP)
        assert flow.values(ids, "answer") == ["text 10", "text 10", "text 4", "text 4"]
