"""A flow that goes on from its journal has the bits of one that was never interrupted: sources, requests, refusals."""

from __future__ import annotations

import functools
import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flow_threads import in_threads
from journal_flow import Model, Numbers, make_flow, same, weights_of

import softs_fast.dataflow as df
from softs_fast.dataflow.engine import admission
from softs_fast.errors import ConfigError, FlowError

# Workers are threads here, and what a thread does to filters of warnings another one may undo.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

N = 8


def run(flow: df.Flow, n: int | None = N) -> list[Any]:
    """Run, and return what each step has done."""
    with flow:
        return [
            (step.number, sorted((one.function, one.ids, one.digest, one.numbers) for one in step.calls))
            for step in flow.steps(n)
        ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Any]:
    folder = tmp_path_factory.mktemp("undisturbed") / "j"
    steps = run(make_flow(str(folder)))
    assert steps == run(make_flow())  # saving changes nothing
    return steps, weights_of(folder)


@pytest.mark.parametrize("has_state", [False, True])
def test_the_rest_of_a_run_has_the_same_bits(
    has_state: bool, tmp_path: Path, undisturbed: tuple[list[Any], Any]
) -> None:
    steps, weights = undisturbed
    make = functools.partial(make_flow, str(tmp_path / "j"), has_state=has_state)
    assert run(make(), 3) == steps[:3]
    torch.manual_seed(99)  # another process has other numbers
    assert run(make(), 7) == steps[2:7]
    assert run(make(), 7) == steps[6:7]
    assert run(make()) == steps[6:]
    assert same(weights_of(tmp_path / "j", has_state=has_state), weights)
    assert run(make()) == []


def test_a_role_of_which_a_save_has_no_weights_gets_them_by_publish(tmp_path: Path) -> None:
    make = functools.partial(make_flow, has_hooks=False)
    expected = run(make(), 5)
    assert run(make(str(tmp_path / "j")), 3) == expected[:3]
    assert not list((tmp_path / "j").glob("save-*/weights/gen"))
    assert run(make(str(tmp_path / "j")), 5) == expected[2:]


@pytest.mark.parametrize("max_age", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_that_are_made_again_are_not_too_old(max_age: int, tmp_path: Path) -> None:
    make = functools.partial(make_flow, str(tmp_path / "j"), max_age=max_age)
    numbers, ages = [], []
    for n in (3, 5, 8):
        flow, _ = in_threads(make)
        with flow:
            for step in flow.steps(n):
                numbers.append(step.number)
                ages.append(step.age_max)
    assert numbers == [1, 2, 3, 3, 4, 5, 5, 6, 7, 8]
    assert max(ages) <= max_age


def test_steps_count_those_of_the_whole_run(tmp_path: Path) -> None:
    def program(limit: int) -> list[tuple[int, bool]]:
        seen = []
        with make_flow(str(tmp_path / "j"), save_every=1) as flow:
            for n in (3, 2):
                for step in flow.steps(n):
                    seen.append((step.number, step.repeated))
                    if len(seen) == limit:
                        return seen
        return seen

    assert program(4) == [(1, False), (2, False), (3, False), (4, False)]
    # The last step had been yielded, and was not saved: the loop ended there.
    assert program(99) == [(4, True), (5, False)]
    assert program(99) == []


def test_a_source_is_skipped_forward_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(make_flow(str(tmp_path / "j")), 2)
    monkeypatch.setattr(admission, "_PROGRESS_S", -1.0)
    caplog.set_level(logging.INFO)
    run(make_flow(str(tmp_path / "j")), 3)
    assert "source of partition 'train': 8 of 8 elements are skipped" in caplog.text


def test_another_source_is_refused(tmp_path: Path) -> None:
    def short() -> df.Flow:
        def source() -> Iterator[dict[str, Any]]:
            yield from ({"x": 0} for _ in range(length))

        actor = df.place(Model, name="actor")
        call = df.call(actor.look, "x", rows=1, interface=df.Interface.INFERENCE)
        return df.Flow([call], source=source(), journal=tmp_path / "j")

    length = 4
    run(short(), 3)
    length = 2
    with pytest.raises(FlowError, match="ends after 2 elements, and 3 of it were read before"):
        run(short(), 3)
    run(make_flow(str(tmp_path / "k"), has_state=True), 2)
    with pytest.raises(FlowError, match=r"state of the source .* which has no load_state_dict now"):
        run(make_flow(str(tmp_path / "k")), 2)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    class Odd(Numbers):
        def state_dict(self) -> Any:
            return {"n": self}

    flow = make_flow(str(tmp_path / "j"))
    flow._settings.sources._given["train"] = (Odd(), None)
    with pytest.raises(
        FlowError,
        match=r"common save of step 2 failed; the save of step 0 stays: rows and .* cannot be saved",
    ):
        run(flow)
    assert weights_of(tmp_path / "j")[0][0] == 0


def test_a_worker_without_room_ends_the_run_and_the_save_before_stays(tmp_path: Path) -> None:
    make = functools.partial(make_flow, str(tmp_path / "j"))
    run(make(), 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(FlowError, match=r"common save of step 4 failed; the save of step 2 stays"):
            run(make())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert weights_of(tmp_path / "j")[0][0] == 2
    assert [number for number, _ in run(make(), 5)] == [3, 4, 5]


def test_what_contradicts_a_journal_is_refused(tmp_path: Path) -> None:
    run(make_flow(str(tmp_path / "j")), 1)
    with pytest.raises(ConfigError, match=r"is of another flow; line \d of the declaration is 'role gen"):
        run(make_flow(str(tmp_path / "j"), n_workers=2), 1)
    with make_flow(str(tmp_path / "j")) as flow:
        with pytest.raises(ConfigError, match="is in use by this process"):
            run(make_flow(str(tmp_path / "j")))
        ids = flow.fetch(8)
        with pytest.raises(ConfigError, match=r"actor.train trains, and is posted by hand"):
            flow.post("actor.train", ids)
    for numbers in ({"save_every": 0}, {"max_starts": -1}):
        with pytest.raises(ConfigError, match="need at least 1 and 0"):
            make_flow(str(tmp_path / "j"), **numbers)


def test_a_save_inside_of_a_training_call_is_refused(tmp_path: Path) -> None:
    actor, critic = df.place(Model, name="actor"), df.place(Model, name="critic")
    calls = [df.call(actor.train, "x", rows=6), df.call(critic.train, "x", rows=4)]
    with pytest.raises(
        ConfigError, match=r"save_every is 1: 6 rows are trained .* critic.train takes 4 at a"
    ):
        df.Flow(calls, source=Numbers(), max_age=1, journal=tmp_path)
    df.Flow(calls, source=Numbers(), max_age=1, journal=df.Journal(tmp_path, save_every=2))
