"""The checkpoints of one process: whole or absent after a crash at any operation, and what is refused before the first step."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from crashing import Crash, crashing
from live_job import GLOBAL, Student, live_data, replayed, sample, supplier

import softs_fast as sf
from softs_fast.job import checkpoint_files
from softs_fast.job.ledger import Ledger
from softs_fast.job.peers import Peers
from softs_fast.job.position import Position
from softs_fast.job.saver import Saver
from softs_fast.job.whole_state import WholeState

LEDGER = Ledger("1", 96, 8)


class Training:
    """A training without samples: its weights follow from the number of its steps."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        keep_every: int | None = None,
        job: str = "digits",
        model: torch.nn.Module | None = None,
        ledger: Ledger = LEDGER,
        others: dict[str, Any] | None = None,
        is_alone: bool = False,
    ) -> None:
        self.model = model or torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.state = sf.TrainingState(self.model, self.optimizer, others)
        self.position = Position(ledger, 0)
        options = sf.Checkpoints(folder, every=1, keep=keep, keep_every=keep_every)
        self.files = WholeState(self.state)
        self.saver = Saver(options, job, self.files, self.position, Peers(), is_alone=is_alone)
        self._running = ExitStack()

    def __enter__(self) -> Training:
        with ExitStack() as running:
            self._running = running
            carried = self.state.carry("position", self.position, self.position.applied, torch.zeros(()))
            running.enter_context(carried)
            running.enter_context(self.saver).load()
            self._running = running.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._running.__exit__(*error)

    def train(self, n_steps: int) -> None:
        """Make steps, and wait for the checkpoint of each."""
        for _ in range(n_steps):
            for one in self.model.parameters():
                one.grad = torch.full_like(one, 0.5)
            self.state.apply()
            self.saver.committed(0, 1)
            if self.saver._writing is not None:
                self.saver._writing.result()

    def digest(self) -> list[float]:
        """Return all numbers of model and optimizer."""
        moments = [one for state in self.optimizer.state.values() for one in state.values()]
        return [float(x) for one in (*self.model.parameters(), *moments) for x in one.detach().reshape(-1)]


def written(folder: Path, n_steps: int, **given: Any) -> list[list[float]]:
    """Train so many steps from the begin; the numbers after each of them."""
    found = []
    with Training(folder, **given) as training:
        for _ in range(n_steps):
            training.train(1)
            found.append(training.digest())
    return found


def test_a_copy_takes_the_memory_of_the_one_before_if_it_fits(tmp_path: Path) -> None:
    """New memory costs several times the copy."""
    rates = Rates({"kept": torch.zeros(3), "grown": torch.zeros(3)})
    with Training(tmp_path, others={"rates": rates}) as training:
        training.train(1)
        places = {name: one.data_ptr() for name, one in training.files._copies.items()}
        rates.state = {"kept": torch.ones(3), "grown": torch.ones(4)}
        training.train(1)
        copies = training.files._copies
        assert copies["rates.kept"].data_ptr() == places["rates.kept"]
    with Training(tmp_path, others={"rates": rates}):
        assert {name: one.tolist() for name, one in rates.state.items()} == {
            "kept": [1] * 3,
            "grown": [1] * 4,
        }


def steps(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(os.listdir(folder))


def test_a_later_process_begins_with_the_newest_one(tmp_path: Path) -> None:
    digests = written(tmp_path, 3)
    assert steps(tmp_path) == ["step-00000002", "step-00000003"]
    with Training(tmp_path) as later:
        assert later.position.committed == 3
        assert later.digest() == digests[2]
        later.train(1)
    first, second = (json.loads((tmp_path / f"step-0000000{n}/checkpoint.json").read_text()) for n in (3, 4))
    assert (first["parent"], second["parent"]) == ("", first["run"])
    assert second["run"] != first["run"]


def test_some_stay_for_ever(tmp_path: Path) -> None:
    written(tmp_path, 5, keep=1, keep_every=2)
    assert steps(tmp_path) == ["step-00000002", "step-00000004", "step-00000005"]


def test_weights_can_be_read_by_others(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    model.register_buffer("wave", torch.tensor([1 + 2j]))
    model.register_buffer("empty", torch.zeros(0, 3))
    with Training(
        tmp_path, model=model, others={"rates": Rates({"a.b": torch.ones(2), "a": {"b": torch.zeros(1)}})}
    ) as one:
        one.train(1)
    found = safetensors.load_file(tmp_path / "step-00000001/state.safetensors")
    assert torch.equal(found["model.weight"], model.weight.detach())
    assert found["model.wave"].tolist() == [0, 0, 128, 63, 0, 0, 0, 64]
    assert found["model.empty"].shape == (0, 3)
    assert (found["rates.a.b"].tolist(), found["rates.a.b'"].tolist()) == ([1, 1], [0])


class Rates:
    """Something with a state of its own."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def cut(folder: Path) -> None:
    path = folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def alter(folder: Path) -> None:
    path = folder / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def lose(folder: Path) -> None:
    (folder / "checkpoint.json").unlink()


def half_write(folder: Path) -> None:
    (folder / "manifest").unlink()


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (cut, r"'state\.safetensors' has [\d,]+ of [\d,]+ bytes"),
        (alter, r"'state\.safetensors' was altered"),
        (lose, r"'checkpoint\.json' is missing"),
        (half_write, "has no manifest"),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_is_used(
    tmp_path: Path, harm: Callable[[Path], None], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    digests = written(tmp_path, 3)
    harm(tmp_path / "step-00000003")
    with Training(tmp_path) as later:
        assert later.digest() == digests[1]
        [damaged, used] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert damaged.startswith(f"checkpoint {tmp_path / 'step-00000003'}")
        assert re.search(text, damaged)
        assert used == f"the job begins with checkpoint {tmp_path / 'step-00000002'}, which is whole"
        caplog.clear()
        # It is made again under the same name.
        later.train(1)
        assert later.digest() == digests[2]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    with Training(tmp_path) as later:
        assert later.position.committed == 3
    harm(tmp_path / "step-00000003")
    harm(tmp_path / "step-00000002")
    with pytest.raises(sf.DamagedError, match=r"no checkpoint in .* is whole"), Training(tmp_path):
        pass
    assert steps(tmp_path) == ["step-00000002", "step-00000003"]


OPERATIONS = ("open", "mkdir", "fsync", "rename", "replace", "rmdir", "unlink", "scandir", "listdir")


def test_a_crash_at_any_operation_leaves_the_one_before_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J10; with the smallest `keep`, and a damaged one where the new one goes."""
    digests = written(tmp_path / "before", 3, keep=2)
    alter(tmp_path / "before/step-00000003")
    at, outcomes = 0, []
    while outcomes[-1:] != ["none"]:
        folder = tmp_path / f"crash-{at}"
        shutil.copytree(tmp_path / "before", folder)
        with crashing(at, OPERATIONS, monkeypatch) as arm:
            training = Training(folder, keep=1)
            with training:
                arm()
                try:
                    training.train(1)
                    outcomes.append("none")
                except Crash:
                    outcomes.append("crash")
        with Training(folder, keep=1) as later:
            assert later.position.committed in (2, 3)
            assert later.digest() == digests[later.position.committed - 1]
            later.train(1)
            assert steps(folder) == [f"step-{later.position.committed:08}"]
        at += 1
    assert len(outcomes) > 20


def test_a_checkpoint_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    are_synced: list[bool] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def noted_rename(old: Path, new: Path) -> None:
        if Path(new).name.startswith("step-"):
            are_synced.append({one.stat().st_ino for one in (Path(old), *Path(old).iterdir())} <= synced)
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    written(tmp_path, 2)
    assert are_synced == [True, True]


def test_a_full_disk_costs_that_one_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Training(tmp_path, model=torch.nn.Linear(100, 100)) as training:
        training.train(1)
        # The file of the state is longer.
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            training.train(1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert steps(tmp_path) == ["step-00000001"]
        [text] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert text.startswith("the checkpoint of step 2 is not written: ")
        assert "File too large" in text
        training.train(1)
    assert steps(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_state_that_cannot_be_written_any_more_costs_that_one_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rates = Rates({"now": 1})
    with Training(tmp_path, others={"rates": rates}) as training:
        rates.state = {"now": object()}
        training.train(1)
        assert steps(tmp_path) == []
        assert 'the checkpoint of step 1 is not written: state "rates.now" is a object' in caplog.text
        rates.state = {"now": 2}
        training.train(1)
    assert steps(tmp_path) == ["step-00000002"]


def test_one_that_is_due_while_another_one_is_written_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Training(tmp_path) as training:
        training.train(1)
        train_while_one_is_written(training)
        training.train(1)
    assert steps(tmp_path) == ["step-00000001", "step-00000003"]
    assert "the checkpoint of step 2 is left out" in caplog.text


def test_one_that_stays_for_ever_waits_until_another_one_is_written(tmp_path: Path) -> None:
    with Training(tmp_path, keep=9, keep_every=2) as training:
        training.train(1)
        ends = threading.Event()
        training.saver._writing = training.saver._threads.submit(ends.wait)
        threading.Timer(0.1, ends.set).start()
        training.train(2)
    assert steps(tmp_path) == [f"step-0000000{n}" for n in (1, 2, 3)]


def train_while_one_is_written(training: Training) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.saver._writing, "done", lambda: False)
        training.train(1)


@pytest.mark.parametrize("fails", [False, True])
def test_that_of_the_last_step_is_written_at_the_end(tmp_path: Path, fails: bool) -> None:
    with suppress(Crash), Training(tmp_path) as training:
        training.train(1)
        train_while_one_is_written(training)
        digest = training.digest()
        if fails:
            raise Crash
    with Training(tmp_path) as later:
        assert later.position.committed == (1 if fails else 2)
        assert fails or later.digest() == digest


def test_a_thread_that_cannot_start_costs_that_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_self: object) -> None:
        raise RuntimeError("can't start new thread")

    with Training(tmp_path) as training:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            training.train(1)
        assert "the checkpoint of step 1 is not written: can't start new thread" in caplog.text
        training.train(1)
    # Not the one of step 1, with tensors of step 2.
    assert steps(tmp_path) == ["step-00000002"]


def test_what_cannot_be_deleted_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, elsewhere = tmp_path / "ckpt", tmp_path / "elsewhere"
    written(folder, 3, keep=3)
    (folder / "step-00000002").rename(elsewhere)
    (folder / "step-00000002").symlink_to(elsewhere)
    rmtree = shutil.rmtree

    def refuse(path: Path, **given: Any) -> None:
        if path.name.endswith("1"):
            raise OSError("it is busy")
        rmtree(path, **given)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with Training(folder, keep=1) as training:
        training.train(1)
    assert steps(folder) == [".trash-step-00000001", "step-00000004"]
    assert f"{folder / 'step-00000001'} cannot be deleted: it is busy" in caplog.text
    assert len(steps(elsewhere)) == 3


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"job": "letters"}, "has job='digits', and this job 'letters'"),
        ({"ledger": Ledger("2", 96, 8)}, "has product='1', and this job '2'"),
        ({"ledger": Ledger("1", 48, 8)}, "has global_batch_size=96, and this job 48"),
        ({"model": torch.nn.Linear(3, 4)}, "(?s)does not fit this training: .*size mismatch for weight"),
        ({"model": torch.nn.Linear(3, 2, bias=False)}, "(?s)does not fit this training: .*bias"),
        ({"others": {"rates": Rates({})}}, "does not fit this training"),
    ],
)
def test_one_of_another_training_is_refused(tmp_path: Path, changed: dict[str, Any], text: str) -> None:
    written(tmp_path, 1)
    with pytest.raises(sf.ConfigError, match=text), Training(tmp_path, **changed):
        pass
    assert steps(tmp_path) == ["step-00000001"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(sf.ConfigError, match="cannot write in checkpoint folder"),
        Training(tmp_path / "file"),
    ):
        pass


def test_a_whole_one_of_another_version_is_refused_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "_FORMAT", 2)
    written(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(sf.ConfigError, match="has format 2, expected 1") as refused, Training(tmp_path):
        pass
    assert not isinstance(refused.value, sf.DamagedError)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"every": 0}, "every must be a whole number and at least 1"),
        ({"keep": 0}, "keep must be a whole number and at least 1"),
        ({"keep_every": 0}, "keep_every must be a whole number and at least 1"),
        ({"keep_every": 75}, "keep_every=75 is no multiple of every=50"),
        ({"folder": ""}, "folder must be the path of a folder, got ''"),
        ({"folder": 7}, "folder must be the path of a folder, got 7"),
    ],
)
def test_wrong_options(changed: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"folder": "ckpt", "every": 50, "keep": 3}
    with pytest.raises(sf.ConfigError, match=text):
        sf.Checkpoints(**given | changed)


def test_a_job_goes_on_after_its_last_checkpoint(
    broker: None, frontend: str, backend: str, tmp_path: Path
) -> None:
    """Steps that came after it are made again, with the same samples."""
    taken: list[int] = []

    def train(n_steps: int, seed: int) -> Student:
        student = Student(seed)
        state = sf.TrainingState(student.model, student.optimizer)
        checkpoints = sf.Checkpoints(tmp_path, every=2)
        with sf.Job("digits", live_data(frontend), state, seed=5, checkpoints=checkpoints) as job:
            for step in job.steps(n_steps):
                with step:
                    for batch in step.batches():
                        taken.extend(batch["number"].tolist())
                        step.backward(student.loss(batch))
        return student

    with supplier(backend, sample):
        train(3, 0)
        assert steps(tmp_path) == [".lock", "step-00000002"]
        student = train(5, 1)
    assert taken == [*range(3 * GLOBAL), *range(2 * GLOBAL, 5 * GLOBAL)]
    assert student.weights() == replayed([1] * 5).weights()
