"""Ranks of torch.distributed that train a job together, as torchrun starts them; one may kill itself, as SIGKILL does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from live_job import CONFIG, WIDTH
from waiting import eventually

import softs_fast as sf
from softs_fast.job.retention import name_of

#: Twelve micro-batches: 1, 2 and 3 ranks have equal shares.
GLOBAL, MICRO, EVERY = 24, 2, 3


class Student(torch.nn.Module):
    """A model with dropout, which notes the numbers of its samples, and kills its process at one of them, once a path exists."""

    def __init__(self, dies_at: int | None, after: Path | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (torch.nn.Linear(WIDTH, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.layers = torch.nn.Sequential(*layers)
        self.taken: list[int] = []
        self._dies_at, self._after = dies_at, after

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the mean loss."""
        self.taken += number.tolist()
        if self._dies_at in self.taken:
            if self._after is not None:
                eventually(self._after.exists, f"{self._after}")
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": (self.layers(x)[:, 0] - x.sum(1)).pow(2).mean()}

    def report(self, step: int) -> dict[str, Any]:
        """Return what was trained in a step that was applied, and begin the next one."""
        taken, self.taken = self.taken, []
        return {"step": step, "taken": taken}

    def weights(self) -> list[float]:
        """Return all weights as numbers; a call of all ranks if they have parts."""
        whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in self.parameters()]
        return torch.cat([one.detach().reshape(-1) for one in whole]).tolist()


def train(say: Callable[[Any], None], rank: int, size: int, kind: str, options: dict[str, Any]) -> None:
    """Train as one rank, and report the step after which it begins, each step and the weights."""
    if size > 1 or kind == "sharded":
        place: dict[str, Any] = {"rank": rank, "world_size": size}
        dist.init_process_group("softs", init_method=f"file://{options['store']}", **place)
    if size > 1:
        # Accelerate goes by what torchrun says.
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ.update({name: str(value) for name, value in told.items()}, MASTER_ADDR="127.0.0.1")
    dies_at, newest = options["dies_at"], None
    if dies_at is not None:
        newest = Path(options["folder"], name_of(dies_at // GLOBAL // EVERY * EVERY))
        if options["is_writing"] and kind == "sharded":
            never_write(rank, newest.name)
            newest = None
    student = Student(dies_at, newest)
    data = sf.LiveData(
        "1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=MICRO, endpoint=options["frontend"]
    )
    checkpoints = sf.Checkpoints(options["folder"], every=EVERY, keep=2)
    loop = train_by_trainer if kind == "transformers" else train_by_job
    loop(say, student, data, checkpoints, kind, options["n_steps"])
    say({"weights": student.weights()})
    if dist.is_initialized():
        dist.destroy_process_group()


def never_write(rank: int, name: str) -> None:
    """Have rank 0 begin to write a checkpoint, and get no further."""
    save = dcp.save

    def stop(*given: Any, checkpoint_id: Path, **named: Any) -> None:
        if rank == 0 and checkpoint_id.parent.name.startswith(name.replace("step-", ".partial-")):
            threading.Event().wait()
        save(*given, checkpoint_id=checkpoint_id, **named)

    dcp.save = stop


def train_by_job(
    say: Callable[[Any], None],
    student: Student,
    data: sf.LiveData,
    checkpoints: sf.Checkpoints,
    kind: str,
    n_steps: int,
) -> None:
    """Train in a loop of its own."""
    model: torch.nn.Module = student
    if kind == "sharded":
        from torch.distributed.fsdp import fully_shard

        fully_shard(student)
    elif kind == "ddp" and dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(student)
    state = sf.TrainingState(student, torch.optim.AdamW(student.parameters(), 1e-2))
    with sf.Job("digits", data, state, seed=5, checkpoints=checkpoints) as job:
        say({"begin": job.committed})
        for step in job.steps(n_steps):
            with step:
                for batch in step.batches():
                    step.backward(model(**batch)["loss"])
            say({**student.report(step.number), "loss": step.loss})


def train_by_trainer(
    say: Callable[[Any], None],
    student: Student,
    data: sf.LiveData,
    checkpoints: sf.Checkpoints,
    _: str,
    n_steps: int,
) -> None:
    """Train in the loop of a Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from softs_fast.job.trainer import JobCallback

    class Reporter(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            say(student.report(state.global_step))

    class LiveTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return job.loader

    with JobCallback("digits", data, checkpoints=checkpoints, seed=5) as job:
        say({"begin": 0 if job.resume_path is None else int(job.resume_path[-8:])})
        arguments = TrainingArguments(
            str(Path(checkpoints.folder) / "output"),
            max_steps=n_steps,
            gradient_accumulation_steps=job.n_micro_batches,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            remove_unused_columns=False,
        )
        trainer = LiveTrainer(model=student, args=arguments, callbacks=[job, Reporter()])
        trainer.train(resume_from_checkpoint=job.resume_path)


@dataclass
class Life:
    """What the ranks of one start have reported, until all have ended.

    Attributes:
        begin: Step after which they began.
        taken: Numbers by step, and by rank.
        weights: Weights at the end of each rank that has one.
        errors: What ranks raised.
    """

    begin: int = -1
    taken: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    losses: dict[int, set[float]] = field(default_factory=dict)
    weights: list[list[float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def note(self, rank: int, said: Any) -> None:
        """Take a report."""
        if isinstance(said, ranks.Raised):
            self.errors.append(said.trace)
        elif "begin" in said:
            assert self.begin in (-1, said["begin"]), "ranks begin at different steps"
            self.begin = said["begin"]
        elif "weights" in said:
            self.weights.append(said["weights"])
        else:
            self.taken.setdefault(said["step"], {})[rank] = said["taken"]
            self.losses.setdefault(said["step"], set()).add(said.get("loss", 0.0))


class GroupJob:
    """Starts of a job, one after the other.

    Args:
        kind: "ddp", "sharded" or "transformers".
        frontend: Endpoint of the broker.
        folder: Folder of the checkpoints.
    """

    def __init__(self, kind: str, frontend: str, folder: Path) -> None:
        self._kind, self._frontend, self.folder = kind, frontend, folder
        self.lives: list[Life] = []

    def run(self, size: int, n_steps: int, dies_at: int | None = None, *, is_writing: bool = False) -> Life:
        """Start so many ranks; return what they have said, when all have ended or one has died.

        It dies once the newest checkpoint that is due is sealed; or while ranks that have parts of the weights write it.
        """
        options = {
            "store": self.folder.with_name(f"{self.folder.name}-store-{len(self.lives)}"),
            "folder": self.folder,
            "frontend": self._frontend,
            "dies_at": dies_at,
            "is_writing": is_writing,
            "n_steps": n_steps,
        }
        life = Life()
        self.lives.append(life)
        with ranks.start(train, size, self._kind, options) as running:
            for rank in range(size):
                with suppress(EOFError):
                    while (said := running.receive(rank)) is not None:
                        life.note(rank, said)
        return life

    def recount(self, n_steps: int) -> None:
        """J2, J3: the weights have each number once, in order; what came after a checkpoint that was the last is not in them."""
        ends = [*(life.begin for life in self.lives[1:]), n_steps]
        trained: dict[int, list[int]] = {}
        for life, end in zip(self.lives, ends, strict=True):
            for step in range(life.begin + 1, end + 1):
                assert step not in trained, f"step {step} is trained twice"
                by_rank = life.taken[step]
                trained[step] = [number for rank in sorted(by_rank) for number in by_rank[rank]]
        found = [number for step in sorted(trained) for number in trained[step]]
        assert found == list(range(n_steps * GLOBAL))
