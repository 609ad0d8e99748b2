"""The place of a common save in the order of all steps: between two steps of training, and beside generation."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest
from flow_threads import in_threads
from journal_flow import make_flow
from waiting import eventually

from softs_fast.dataflow.journal.folder import JournalFolder
from softs_fast.dataflow.link.messages import HookTask, MainTask, Result

# Workers are threads here, and what a thread does to filters of warnings another one may undo.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.mark.parametrize("max_age", [0, 1, 2])
def test_workers_save_between_the_training_calls_of_two_steps(max_age: int, tmp_path: Path) -> None:
    make = functools.partial(make_flow, str(tmp_path / "j"), max_age=max_age)
    flow, workers = in_threads(make)
    with flow:
        assert len(list(flow.steps(7))) == 7
    n_saves = 0
    for worker in (0, 1):
        trained: list[int] = []
        for receiver, message in workers.hub.sent:
            if receiver != worker:
                continue
            if isinstance(message, MainTask) and message.function.endswith("train"):
                trained.append(message.step)
            elif isinstance(message, HookTask) and message.form is not None and message.form.kind == "Save":
                step = int(Path(message.form.folder).parent.name.split("-step-")[1].split("-")[0])
                # All of the steps before, each as often as it has calls, and none behind.
                assert trained == sorted([*range(step)] * (worker + 1))
                n_saves += 1
    assert n_saves == 3 * 4  # roles that are kept, at steps 0, 2, 4 and 6: actor, critic, average
    tickets = [message.ticket for _, message in workers.hub.sent if isinstance(message, HookTask | MainTask)]
    assert tickets == sorted(tickets)


def test_generation_goes_on_while_a_save_is_written(tmp_path: Path) -> None:
    flow, workers = in_threads(functools.partial(make_flow, str(tmp_path / "j"), max_age=1))
    saves: set[int] = set()
    is_generated = threading.Event()

    def later(ticket: int) -> bool:
        """Return whether a call of the generator has been sent since a save."""
        return any(
            worker == 2 and isinstance(message, MainTask) and message.ticket > ticket
            for worker, message in workers.hub.sent
        )

    def wait_for_it(worker: int, message: Any) -> None:
        if worker or not isinstance(message, Result) or is_generated.is_set():
            return
        saves.update(
            one.ticket
            for _, one in workers.hub.sent
            if isinstance(one, HookTask) and one.form is not None and "-step-2-" in one.form.folder
        )
        if message.ticket in saves:
            eventually(lambda: later(message.ticket), "a later call")
            is_generated.set()

    workers.hub.on_message = wait_for_it
    with flow:
        assert [step.number for step in flow.steps(4)] == [1, 2, 3, 4]
    assert is_generated.is_set()


def test_a_save_counts_when_its_step_was_yielded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed: list[int] = []
    real = JournalFolder.commit

    def commit(self: JournalFolder, partial: Path, save: Any) -> None:
        committed.append(save.step)
        real(self, partial, save)

    monkeypatch.setattr(JournalFolder, "commit", commit)
    with make_flow(str(tmp_path / "j"), save_every=1) as flow:
        for step in flow.steps(5):
            assert max(committed) < step.number
            # Requests by hand run what has tickets, the save among it.
            call = flow.post("gen.generate", flow.fetch(4)) if step.number == 3 else None
            if call is not None:
                flow.flush(call)
                call.result()
    assert committed == [0, 1, 2, 3, 4, 5]


def test_a_flow_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    flow = make_flow(str(tmp_path / "j"))
    numbers = []
    for n in (3, 2):
        with flow:
            numbers += [(step.number, step.repeated) for step in flow.steps(n)]
    assert numbers == [(1, False), (2, False), (3, False), (3, True), (4, False), (5, False)]
