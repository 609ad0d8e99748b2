"""Checkpoints of a model that FSDP2 has sharded: what is written, what is loaded and what is refused, with one rank."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from live_job import live_data
from test_checkpoints import LEDGER, steps
from test_group_checkpoints import as_ranks
from torch.distributed.fsdp import fully_shard

import softs_fast as sf
from softs_fast.durable import manifest, verify_manifest
from softs_fast.job import sharded_state
from softs_fast.job.group_worker import GroupWorker
from softs_fast.job.peers import Peers
from softs_fast.job.position import Position
from softs_fast.job.saver import Saver
from softs_fast.job.sharded_state import ShardedState

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A process group of this process; torch keeps some of its descriptors."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Model(torch.nn.ModuleDict):
    """Layers by name."""

    def forward(self) -> None:
        """Do nothing: `fully_shard` wants to see it."""


class Training:
    """A training without samples, of which one layer, "early", has gradients."""

    def __init__(
        self,
        optimizer: Any = torch.optim.AdamW,
        dtype: torch.dtype | None = None,
        **widths: int,
    ) -> None:
        torch.manual_seed(0)
        self.model = Model(
            {name: torch.nn.Linear(3, width, dtype=dtype) for name, width in {"early": 2, **widths}.items()}
        )
        fully_shard(self.model)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.n_hooked = 0
        self.optimizer.register_step_pre_hook(self._count)
        self.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.n_hooked += 1

    def run(
        self,
        folder: Path,
        n_steps: int,
        trained: str | None = "early",
        *,
        peers: Peers | None = None,
        others: dict[str, Any] | None = None,
    ) -> list[float]:
        """Load, train a layer, or none, for so many steps, and return all numbers."""
        state, position = sf.TrainingState(self.model, self.optimizer, others), Position(LEDGER, 0)
        with ExitStack() as running:
            running.enter_context(state.carry("position", position, position.applied, torch.zeros(())))
            options, files = sf.Checkpoints(folder, every=1), ShardedState(state, peers or Peers())
            saver = Saver(options, "digits", files, position, files.peers, is_alone=True)
            running.enter_context(saver).load()
            for _ in range(n_steps):
                for one in self.model[trained].parameters() if trained else ():
                    one.grad = torch.full_like(one, 0.5)
                state.apply()
                saver.committed(0, 1)
                wait([saver._writing] if saver._writing else [])
        moments = [one for state in self.optimizer.state.values() for one in state.values()]
        tensors = [one for one in (*self.model.parameters(), *moments) if isinstance(one, torch.Tensor)]
        whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in tensors]
        return [float(x) for one in whole for x in one.detach().reshape(-1)]


def test_a_layer_that_was_not_trained_yet_begins_as_without_the_checkpoint(tmp_path: Path) -> None:
    undisturbed, loaded = Training(late=2), Training(late=2)
    end = undisturbed.run(tmp_path / "job", 2)
    assert loaded.run(tmp_path / "job", 0) == end
    # Its first step is step 1 of Adam, and not a later one.
    assert loaded.run(tmp_path / "a", 1, "late") == undisturbed.run(tmp_path / "b", 1, "late")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"late": 2}, {}, r"it has torch.float32 \[2\] model.late.bias, and this training none"),
        ({}, {"late": 2}, r"it has no model.late.bias, and this training torch.float32 \[2\]"),
        ({"late": 2}, {"late": 4}, r"it has torch.float32 \[2\] model.late.bias, .* torch.float32 \[4\]"),
        (
            {},
            {"dtype": torch.bfloat16},
            r"it has torch.float32 \[2\] model.early.bias, .* torch.bfloat16 \[2\]",
        ),
        ({}, {"optimizer": torch.optim.SGD}, "has the state of AdamW for the optimizer, and that is SGD"),
        ({"optimizer": torch.optim.SGD}, {}, "has the state of SGD for the optimizer, and that is AdamW"),
    ],
)
def test_another_model_is_refused_by_name(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], text: str
) -> None:
    Training(**before).run(tmp_path / "ckpt", 1)
    with pytest.raises(sf.ConfigError, match=rf"(?s)step-00000001 does not fit this training: .*{text}"):
        Training(**after).run(tmp_path / "ckpt", 1)


def test_no_rank_loads_before_all_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a call of all ranks: one would wait in it for a rank that has failed before."""
    Training().run(tmp_path, 1)
    loads: list[Any] = []
    monkeypatch.setattr(dcp, "load", lambda *given, **_: loads.append(given))
    trainings = [Training(), Training(late=2)]
    first, second = as_ranks(lambda peers: trainings[peers.rank].run(tmp_path, 0, peers=peers))
    assert "another rank refuses checkpoint" in first
    assert "it has no model.late.bias" in second
    assert not loads


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.ASGD])
def test_tensors_of_more_bits_than_the_weights_stay_so(tmp_path: Path, optimizer: Any) -> None:
    """Though torch casts them, which the second resumed run would begin with, or be refused for."""
    end = Training(optimizer, torch.bfloat16).run(tmp_path / "undisturbed", 6)
    runs = [Training(optimizer, torch.bfloat16).run(tmp_path / "job", 2) for _ in range(3)]
    assert runs[-1] == end


def test_a_checkpoint_before_the_first_gradients_makes_no_step(tmp_path: Path) -> None:
    """As a GradScaler leaves out the first steps."""
    training = Training()
    training.run(tmp_path / "job", 1, None)
    assert not training.optimizer.state
    end = Training().run(tmp_path / "undisturbed", 1)
    assert training.run(tmp_path / "job", 1) == end


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_hooks_see_the_steps_of_the_job_only(tmp_path: Path, momentum: float) -> None:
    optimizer = partial(torch.optim.SGD, momentum=momentum)
    undisturbed = Training(optimizer)
    end = undisturbed.run(tmp_path / "undisturbed", 4)
    Training(optimizer).run(tmp_path / "job", 2)
    again = Training(optimizer)
    assert again.run(tmp_path / "job", 2) == end
    assert (undisturbed.n_hooked, again.n_hooked) == (2 * 4, 2 * 2)


def test_steps_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the weights of its step; what is due meanwhile is left out."""
    save, may_write = dcp.save, threading.Event()

    def save_later(*given: Any, **named: Any) -> None:
        assert may_write.wait(60)
        save(*given, **named)

    def next_step(*_: Any) -> None:
        # Of the step after the one that is being written.
        if "is left out" in caplog.text:
            may_write.set()

    monkeypatch.setattr(dcp, "save", save_later)
    monkeypatch.setattr(sys.modules[__name__], "wait", next_step)
    training = Training()
    training.run(tmp_path, 2)
    assert steps(tmp_path) == [".lock", "step-00000001", "step-00000002"]
    shutil.rmtree(tmp_path / "step-00000002")
    assert Training().run(tmp_path, 0) == Training().run(tmp_path / "undisturbed", 1)


class Apart(Peers):
    """Ranks in a group that has lost a connection."""

    def __init__(self) -> None:
        super().__init__(dist.group.WORLD)

    def texts(self, text: str) -> list[str]:
        raise RuntimeError("Connection closed by peer")

    def close(self) -> None:
        self.is_closed = True


def test_writers_that_have_lost_each_other_meet_in_a_new_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    apart = Apart()
    groups = [apart, Peers()]
    monkeypatch.setattr(Peers, "of_process", staticmethod(lambda: groups.pop(0)))
    Training().run(tmp_path, 2)
    assert "step 1 is not written: Connection closed by peer" in caplog.text
    assert steps(tmp_path) == [".lock", "step-00000002"]
    assert apart.is_closed


class Average:
    """A mean of the weights, in parts as they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._means = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update(self, model: torch.nn.Module) -> None:
        """Take in the weights."""
        for name, one in model.named_parameters():
            self._means[name].lerp_(one.detach(), 0.5)

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {"means": self._means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a state."""
        self._means = state["means"]

    def numbers(self) -> list[float]:
        """Return all numbers."""
        return [float(x) for one in self._means.values() for x in one.full_tensor().reshape(-1)]


def test_an_average_of_the_weights_in_parts_is_written_with_them(tmp_path: Path) -> None:
    first, second = Training(), Training(early=2)
    average, other = Average(first.model), Average(second.model)
    first.optimizer.register_step_post_hook(lambda *_: average.update(first.model))
    first.run(tmp_path, 2, others={"average": average})
    before = other.numbers()
    second.run(tmp_path, 0, others={"average": other})
    assert other.numbers() == average.numbers() != before


class OnParts(torch.optim.SGD):
    """An optimizer with a state of this rank's part, which does not say that it is one."""

    in_lists = False

    def step(self, closure: Any = None) -> None:
        super().step()
        for one in self.param_groups[0]["params"]:
            local = torch.zeros_like(one.to_local())
            self.state[one]["moments"] = [local] if self.in_lists else local


@pytest.mark.parametrize("in_lists", [False, True])
def test_a_state_of_which_only_this_rank_knows_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, in_lists: bool
) -> None:
    monkeypatch.setattr(OnParts, "in_lists", in_lists)
    Training(OnParts).run(tmp_path, 1)
    assert "step 1 is not written: the optimizer has moments of early.weight in another form" in caplog.text
    assert steps(tmp_path) == [".lock"]


def test_a_group_without_parameters_is_loaded(tmp_path: Path) -> None:
    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{"params": list(parameters)}, {"params": []}], lr=lr)

    end = Training(optimizer).run(tmp_path, 1)
    assert Training(optimizer).run(tmp_path, 0) == end


def test_what_one_rank_writes_comes_after_what_all_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it cannot write, the others would wait for it in a call of all."""
    made: list[str] = []
    for where, name in ((sharded_state.dcp, "save"), (sharded_state, "write_state")):
        real = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda *a, _real=real, _name=name, **k: made.append(_name) or _real(*a, **k)
        )
    Training().run(tmp_path, 1)
    assert made == ["save", "write_state"]


def test_ctrl_c_while_one_is_loaded_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes an error of its own of it."""
    Training().run(tmp_path, 1)
    monkeypatch.setattr(
        dcp.FileSystemReader, "read_data", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        Training().run(tmp_path, 0)


def test_each_rank_vouches_for_the_files_that_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    facts = manifest._fact
    monkeypatch.setattr(manifest, "_fact", lambda path: read.append(path.name) or facts(path))
    Training().run(tmp_path, 1)
    assert sorted(read) == [".metadata", "__0_0.distcp", "checkpoint.json", "state.safetensors"]
    assert verify_manifest(tmp_path / "step-00000001", "it") >= {"dcp/__0_0.distcp", "state.safetensors"}


def test_without_free_space_none_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage, folder = shutil.disk_usage, tmp_path / "ckpt"
    # Weights of 1000 x 3 and a bias; two moments of each, and a step.
    n_bytes = 4 * 4000 * 3 + 4 * 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=n_bytes - 1))
    Training(early=1000).run(folder, 1)
    assert "the checkpoint of step 1 is not written" in caplog.text
    assert "free space" in caplog.text
    assert steps(folder) == [".lock"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=n_bytes))
    Training(early=1000).run(folder, 1)
    assert steps(folder) == [".lock", "step-00000001"]


def test_a_group_of_one_process_that_has_others_beside_it(
    frontend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = torch.nn.Linear(3, 2)
    state = sf.TrainingState(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(sf.ConfigError, match=r"WORLD_SIZE is 2, .* in one group of all of them"):
        sf.Job("digits", live_data(frontend), state)


class Two(Peers):
    """The first of two ranks."""

    def __init__(self) -> None:
        self.rank, self.size, self.group = 0, 2, None


@pytest.mark.parametrize("where", ["body", "end"])
def test_a_rank_that_swallows_an_error_makes_no_further_step(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The others reduce gradients of a step that it has left, and hear of it when it ends."""
    if where == "end":
        monkeypatch.setattr(Two, "mean", lambda *_: (_ for _ in ()).throw(RuntimeError))
    model = torch.nn.Linear(3, 2)
    state = sf.TrainingState(model, torch.optim.SGD(model.parameters(), 0.1))
    worker = GroupWorker(state, 4, Two(), torch.zeros(()))
    with suppress(RuntimeError), worker.step():
        if where == "body":
            raise RuntimeError
    with pytest.raises(sf.ConfigError, match="step 5 has failed on this rank"), worker.step():
        pass
