"""A flow with a journal that is left between two steps, and opened again: by the same object, after others, after errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import journal_flow
import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.journal import folder
from softs_fast.errors import ConfigError, FlowError

# Workers are threads here, and what a thread does to filters of warnings another one may undo.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


class Model(df.Role):
    """Adds a number that it draws, and notes what it has trained with."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.net.weight.zero_()

    def generate(self, rows: df.Rows) -> dict[str, Any]:
        return {"y": rows["x"] + torch.rand(rows.n_rows)}

    @torch.no_grad()
    def train(self, rows: df.Rows) -> dict[str, Any]:
        self.net.weight += rows["y"].sum()
        return {"sum": rows["y"].sum(), "first": rows["x"].min()}

    def step(self, rows: df.Rows) -> dict[str, Any]:
        return {"z": rows["y"]}

    def log(self, rows: df.Rows) -> None:
        """Has no outputs, and trains nothing."""


def numbers() -> Iterator[dict[str, Any]]:
    for i in range(1000):
        yield {"x": torch.tensor(float(i))}


def test_steps_end_when_a_save_waits_for_a_step_that_is_not_yielded_yet(tmp_path: Path) -> None:
    """The last function completes two steps at once, so the save of the second one begins before the first is yielded."""
    gen, actor = df.place(Model, name="gen"), df.place(Model, name="actor")
    calls = [
        df.call(gen.generate, "x -> y", rows=2, interface=df.Interface.INFERENCE),
        df.call(actor.step, "x, y -> z", rows=2, interface=df.Interface.TRAIN_STEP),
        df.call(gen.log, "z", rows=4, interface=df.Interface.INFERENCE),
    ]
    flow = df.Flow(calls, source=numbers(), max_age=1, journal=df.Journal(tmp_path / "j", save_every=2))
    with flow:
        for number in (1, 2, 3, 4):
            assert [step.number for step in flow.steps(1)] == [number]
    with flow:
        assert flow.ask("stats")["steps"] == 4


class Numbers(journal_flow.Numbers):
    """A source that knows its position, and counts."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            self.n += 1
            yield {"x": torch.tensor(float(self.n - 1))}


def make_flow(
    folder: Path | None,
    *,
    save_every: int = 1,
    max_age: int = 0,
    source: Any = None,
    raises: list[Any] | None = None,
) -> df.Flow:
    """Return a flow of two rows a step.

    Args:
        folder: Folder of the journal.
        save_every: `save_every` of `df.Journal`.
        max_age: `max_age` of `df.Flow`.
        source: Another source than `numbers`.
        raises: Errors that a function raises, the last one first.
    """

    class Raising(Model):
        def train(self, rows: df.Rows) -> dict[str, Any]:
            if raises:
                raise raises.pop()
            return super().train(rows)

    gen, actor = df.place(Model, name="gen"), df.place(Raising, name="actor")
    train = df.Interface.TRAIN_STEP
    calls = [
        df.call(gen.generate, "x -> y", rows=2, interface=df.Interface.INFERENCE),
        df.call(actor.train, "x, y", rows=2, interface=train),
    ]
    journal = None if folder is None else df.Journal(folder, save_every=save_every)
    return df.Flow(calls, source=numbers() if source is None else source, max_age=max_age, journal=journal)


def run(flow: df.Flow, n: int) -> list[tuple[int, float, float]]:
    """Run steps of a flow that is open; return their numbers, first elements, and sums."""
    return [(step.number, step["actor.train"]["first"], step["actor.train"]["sum"]) for step in flow.steps(n)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float, float]]:
    """What a flow does that is never left."""
    torch.manual_seed(3)
    with make_flow(tmp_path_factory.mktemp("alone")) as flow:
        steps = run(flow, 8)
    assert [step[:2] for step in steps] == [(i + 1, 2.0 * i) for i in range(8)]
    return steps


@pytest.fixture
def expected(undisturbed: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """The same of a flow that begins now."""
    torch.manual_seed(3)
    return undisturbed


@pytest.mark.parametrize("has_journal", [False, True])
def test_an_error_stays_with_the_flow_that_was_open(has_journal: bool, tmp_path: Path) -> None:
    raises: list[Any] = []
    flow = make_flow(tmp_path / "j" if has_journal else None, raises=raises)
    with flow:
        run(flow, 1)
        raises.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run(flow, 1)
    raises.append(OSError("no such file"))
    with flow, pytest.raises(FlowError, match="no such file"):
        run(flow, 1)
    with flow:
        steps = run(flow, 1)
    # Without a journal rows that were in flight have gone, and steps begin at 1.
    assert [step[:2] for step in steps] == ([(2, 2.0)] if has_journal else [(1, 6.0)])


def test_a_flow_without_a_journal_begins_anew_when_it_is_opened_again() -> None:
    flow = make_flow(None, max_age=2)
    with flow:
        # Calls are in flight when it is left.
        assert [step.number for step, _ in zip(flow.steps(), range(2), strict=False)] == [1, 2]
        parked = flow.post("gen.generate", flow.fetch(2))
    with flow:
        n_read = flow._settings.sources.n_read["train"]
        assert [step[:2] for step in run(flow, 2)] == [(1, float(n_read)), (2, n_read + 2.0)]
        assert flow.ask("stats")["steps"] == 2
        with pytest.raises(FlowError, match=r"has no answer: the flow has gone back .* or was closed"):
            parked.result()


@pytest.mark.parametrize(
    ("makes_source", "n_first", "n_other"),
    [(numbers, 1, 6), (numbers, 0, 2), (Numbers, 1, 2), (Numbers, 0, 2), (Numbers, 3, 4)],
)
def test_a_save_of_another_object_is_read(
    makes_source: Callable[[], Any],
    n_first: int,
    n_other: int,
    tmp_path: Path,
    expected: list[tuple[int, float, float]],
) -> None:
    flow = make_flow(tmp_path / "j", source=makes_source(), max_age=0)
    with flow:
        assert run(flow, n_first) == expected[:n_first]
    if not n_first:
        torch.manual_seed(3)
    with make_flow(tmp_path / "j", source=makes_source()) as other:
        assert run(other, n_other) == expected[n_first:n_other]
    with flow:
        assert run(flow, 8 - n_first) == expected[n_other:]
        assert flow.ask("stats")["steps"] == 8


def test_elements_that_the_save_of_another_object_does_not_know_are_kept(tmp_path: Path) -> None:
    """The first object has read further than the one that has saved since."""
    flow = make_flow(tmp_path / "j", max_age=2)
    with flow:
        assert next(flow.steps(1)).number == 1  # it has read ahead, and its first step is not saved
        n_own = flow._settings.sources.n_read["train"]
    with make_flow(tmp_path / "j") as other:
        firsts = [step[1] for step in run(other, 2)]
        assert other._settings.sources.n_read["train"] < n_own
    with flow:
        firsts += [step[1] for step in run(flow, 6)]
    assert firsts == [2.0 * i for i in range(7)]


def test_elements_that_are_not_kept_are_refused(tmp_path: Path) -> None:
    flow = make_flow(tmp_path / "j")
    with make_flow(tmp_path / "j") as other:
        run(other, 1)
    shutil.copytree(tmp_path / "j", tmp_path / "before")
    with flow:
        run(flow, 3)
    shutil.rmtree(tmp_path / "j")
    (tmp_path / "before").rename(tmp_path / "j")
    with (
        pytest.raises(
            FlowError, match=r"with 2 elements of the source .* and this flow has read 6, of which"
        ),
        flow,
    ):
        pass
    shutil.rmtree(tmp_path / "j")
    with pytest.raises(ConfigError, match=r"has no save, and this flow goes on from save-\d+-step-3-"), flow:
        pass


def test_a_save_that_counts_although_its_commit_failed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[tuple[int, float, float]]
) -> None:
    flow = make_flow(tmp_path / "j")
    with flow:
        assert run(flow, 1) == expected[:1]
        real = folder.publish_folder

        def publish(partial: Path, final: Path) -> None:
            real(partial, final)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(folder, "publish_folder", publish)
        with pytest.raises(FlowError, match="Input/output error; the save of step 1 stays"):
            run(flow, 1)
        monkeypatch.setattr(folder, "publish_folder", real)
    with flow:
        assert run(flow, 2) == expected[2:4]


class Interrupted:
    """An iterator that is interrupted once, before an element."""

    def __init__(self, at: int) -> None:
        self.inner, self.at, self.n = numbers(), at, 0

    def __iter__(self) -> Interrupted:
        return self

    def __next__(self) -> dict[str, Any]:
        if self.n == self.at:
            self.at = -1
            raise KeyboardInterrupt
        self.n += 1
        return next(self.inner)


def test_a_skip_that_was_interrupted_goes_on_there(
    tmp_path: Path, expected: list[tuple[int, float, float]]
) -> None:
    with make_flow(tmp_path / "j") as flow:
        assert run(flow, 4) == expected[:4]
    flow = make_flow(tmp_path / "j", source=Interrupted(5))
    with pytest.raises(KeyboardInterrupt), flow:
        pass
    with flow:
        assert run(flow, 6) == expected[4:6]
