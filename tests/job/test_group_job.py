"""Ranks that are lost together: all begin with the last sealed checkpoint, and the weights have each number once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import group_job
import pytest
import ranks
import torch
import torch.distributed as dist
from group_job import EVERY, GLOBAL, GroupJob
from live_job import CONFIG, serve

import softs_fast as sf
from softs_fast.job.contract import check_ranks
from softs_fast.job.peers import Peers

N_STEPS = 8


@pytest.fixture
def supplied(broker: None, backend: str) -> Iterator[None]:
    """A broker and a supplier."""
    with ranks.start(serve, 1, backend) as running:
        assert running.receive(0) == "serves"
        yield


KINDS = ["ddp", "sharded", pytest.param("transformers", marks=pytest.mark.full)]


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_killed_and_begin_again(supplied: None, frontend: str, tmp_path: Path, kind: str) -> None:
    """Twice, in the midst of a step; the weights have the bits of the undisturbed run. Then three ranks go on."""
    undisturbed = GroupJob(kind, frontend, tmp_path / "undisturbed")
    end = undisturbed.run(2, N_STEPS)
    assert not end.errors, end.errors
    assert all(len(found) == 1 for found in end.losses.values()), "ranks have different losses"
    job = GroupJob(kind, frontend, tmp_path / "ckpt")
    # Rank 1 in step 5, and rank 0 in step 8.
    for dies_at, is_writing in ((4 * GLOBAL + GLOBAL // 2 + 3, False), (7 * GLOBAL + 3, True)):
        life = job.run(2, N_STEPS, dies_at, is_writing=is_writing)
        assert len(life.errors) == 1, "the other rank has no step without it"
        assert not life.weights
    last = job.run(2, N_STEPS)
    # One that is being written dies with a rank that has a part of it.
    assert [life.begin for life in job.lives] == [0, EVERY, EVERY if kind == "sharded" else 2 * EVERY]
    job.recount(N_STEPS)
    assert last.weights == end.weights == [end.weights[0]] * 2
    # The newest checkpoint is damaged: one rank finds it, and all take the one before.
    largest = max((job.folder / f"step-{2 * EVERY:08}").rglob("*"), key=lambda one: one.stat().st_size)
    data = largest.read_bytes()
    largest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    wider = job.run(3, N_STEPS + 1)
    assert not wider.errors, wider.errors
    assert wider.begin == EVERY
    if kind != "transformers":
        # A Trainer fetches the micro-batches of a step before it trains any, so its dropout depends on their number.
        alone = GroupJob(kind, frontend, tmp_path / "alone").run(1, N_STEPS + 1)
        assert wider.weights[0] == pytest.approx(alone.weights[0], rel=1e-3, abs=1e-5)
    job.lives[1:3] = []
    job.recount(N_STEPS + 1)


def reduce_nothing(say: Callable[[Any], None], rank: int, size: int, store: Path, frontend: str) -> Any:
    """Train without DistributedDataParallel."""
    dist.init_process_group("softs", init_method=f"file://{store}", rank=rank, world_size=size)
    student = group_job.Student(None)
    before = student.weights()
    state = sf.TrainingState(student, torch.optim.AdamW(student.parameters(), 1e-2))
    data = sf.LiveData("1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=2, endpoint=frontend)

    def make_step(job: sf.Job) -> None:
        with next(job.steps(1)) as step:
            for batch in step.batches():
                step.backward(student(**batch)["loss"])

    with sf.Job("digits", data, state) as job:
        with pytest.raises(sf.ConfigError, match="wrap the model in DistributedDataParallel"):
            make_step(job)
        assert (job.rank, job.size, job.committed) == (rank, size, 0)
    dist.destroy_process_group()
    return student.weights() == before


def test_ranks_that_do_not_reduce_their_gradients(supplied: None, frontend: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert ranks.run(reduce_nothing, 2, store, frontend) == [True, True]


class OtherRank(Peers):
    """One of several ranks, to which rank 0 says something."""

    def __init__(self, size: int, said: str) -> None:
        self.rank, self.size, self.group, self._said = 1, size, None, said

    def of_first(self, text: str) -> str:
        """Return what rank 0 says."""
        return self._said


@pytest.mark.parametrize(
    ("size", "seed", "text"),
    [
        (5, "5", r"5 ranks .* 12 micro-batches equally.* start one of \[1, 2, 3, 4, 6, 12\] ranks"),
        # It may be why the shares of this rank are unequal.
        (5, "6", "this rank has seed='6', and rank 0 '5'; start the same script on all ranks"),
    ],
)
def test_ranks_that_cannot_train_together(size: int, seed: str, text: str) -> None:
    with pytest.raises(sf.ConfigError, match=text):
        check_ranks(OtherRank(size, '{"product": "1", "seed": "5"}'), {"product": "1", "seed": seed}, 12)


class Disagreeing(Peers):
    """One of two ranks, of which rank 0 says something else in one place."""

    def __init__(self, old: str, new: str) -> None:
        self.rank, self.size, self.group, self._old, self._new = 1, 2, None, old, new

    def of_first(self, text: str) -> str:
        """Return what rank 0 says."""
        return text.replace(self._old, self._new)


def made(kind: str, frontend: str, checkpoints: sf.Checkpoints) -> Any:
    """Return a job, or its callback."""
    data = sf.LiveData("1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=2, endpoint=frontend)
    if kind == "transformers":
        trainer = pytest.importorskip("softs_fast.job.trainer")
        return trainer.JobCallback("digits", data, checkpoints=checkpoints)
    student = group_job.Student(None)
    return sf.Job(
        "digits",
        data,
        sf.TrainingState(student, torch.optim.AdamW(student.parameters())),
        checkpoints=checkpoints,
    )


@pytest.mark.parametrize(
    ("kind", "term", "own", "other"),
    [
        ("job", "checkpoints every", "3", "4"),
        ("job", "optimizer", "AdamW", "SGD"),
        pytest.param("transformers", "checkpoints every", "3", "4", marks=pytest.mark.full),
    ],
)
def test_ranks_that_would_make_other_calls(
    frontend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, term: str, own: str, other: str
) -> None:
    """Such as for a checkpoint that only some of them write: these would wait for the others."""
    peers = Disagreeing(f'"{term}": "{own}"', f'"{term}": "{other}"')
    monkeypatch.setattr(Peers, "of_process", lambda: peers)
    job = made(kind, frontend, sf.Checkpoints(tmp_path, every=3))
    with pytest.raises(sf.ConfigError, match=f"this rank has {term}='{own}', and rank 0 '{other}'"), job:
        pass


@pytest.mark.full
def test_a_trainer_saves_a_step_twice(
    frontend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does at the end of an epoch; and it may be one that would leave out a checkpoint that is due."""
    transformers = pytest.importorskip("transformers")
    with made("transformers", frontend, sf.Checkpoints(tmp_path / "ckpt", every=1)) as job:
        given: dict[str, Any] = {"gradient_accumulation_steps": job.n_micro_batches, "use_cpu": True}
        arguments = transformers.TrainingArguments(str(tmp_path / "output"), **given)
        state = transformers.TrainerState()
        with pytest.raises(sf.ConfigError, match="ignore_data_skip=True, got False"):
            job.on_train_begin(arguments, state, None)
        job.on_init_end(arguments, state, None)
        with monkeypatch.context() as patch:
            patch.setattr(job._peers, "of_first", lambda own: "/elsewhere")
            with pytest.raises(sf.ConfigError, match=r"output_dir is .*/output on this rank, and /elsewhere"):
                job.on_train_begin(arguments, state, None)
        job.on_train_begin(arguments, state, None)
        state.global_step = 1
        monkeypatch.setattr(job._position, "committed", 1)
        for _ in range(2):
            (tmp_path / "output" / "checkpoint-1").mkdir()
            job.on_save(arguments, state, None)
        assert not caplog.text
        assert [one.name for one in (tmp_path / "ckpt").glob("step-*")] == ["step-00000001"]
        best = {"save_strategy": "best", "metric_for_best_model": "loss"}
        arguments = transformers.TrainingArguments(str(tmp_path / "output"), **given, **best)
        job.on_init_end(arguments, state, None)
        with pytest.raises(sf.ConfigError, match='save_strategy="best" leaves out checkpoints'):
            job.on_train_begin(arguments, state, None)
