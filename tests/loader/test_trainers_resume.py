"""Trainers that stop in the midst of an epoch and resume: each trains on what it would have without the stop.

Every process of a test run collects this file, and one runs it: the trainers, which take ten seconds of a core each, are
imported by the tests.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import softs_fast as sf
from softs_fast.loader.trainer import StreamCallback

# Advice of the trainers about loggers, workers and the like.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]

CONFIG = sf.BatchConfig([sf.TensorSpec("i", (), "int64")])
#: Batches of 2 and epochs of 6; the run stops after 4 of 10 steps, and resumes in another loader.
EPOCH, STOP, END = 6, 4, 10


@pytest.fixture(autouse=True)
def accelerators() -> Iterator[None]:
    """Accelerate keeps its state for the process."""
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def new(frontend: str, backend: str) -> Iterator[Callable[..., sf.SoftDataLoader]]:
    loaders: list[sf.SoftDataLoader] = []

    def generate(product_id: str, n: int, sequences: list[int]) -> dict[str, torch.Tensor]:
        return {"i": torch.tensor(sequences)}

    def make(ordered: bool, workers: int) -> sf.SoftDataLoader:
        options = {"ordered": ordered, "num_workers": workers, "steps_per_epoch": EPOCH, "batch_size": 2}
        loaders.append(sf.SoftDataLoader("p", frontend, CONFIG, **options))
        return loaders[-1]

    supplier = sf.Supplier(
        batch_generator_fn=generate, product_ids=["p"], endpoint=backend, batch_config=CONFIG
    )
    with sf.Broker(sf.EndpointConfig(frontend, backend)), supplier:
        yield make
        for loader in loaders:
            loader.close()


class Student(torch.nn.Module):
    """Has a weight, and remembers on what it was trained."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen = seen

    def forward(self, i: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.extend(i.tolist())
        return {"loss": (self.weight * i).mean()}


def with_transformers(
    loader: Any, folder: Path, steps: int, resumes: bool, seen: list[int], skips: bool = False
) -> None:
    import transformers

    class LiveTrainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(loader)

    options: dict[str, Any] = {
        "max_steps": steps,
        "save_steps": STOP,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    arguments = transformers.TrainingArguments(str(folder), **options)
    callbacks = [] if skips else [StreamCallback(loader)]
    trainer = LiveTrainer(model=Student(seen), args=arguments, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resumes)
    assert trainer.state.global_step == steps


def with_accelerate(loader: Any, folder: Path, steps: int, resumes: bool, seen: list[int]) -> None:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    student = Student(seen)
    optimizer = torch.optim.SGD(student.parameters(), 1e-3)
    model, optimizer, prepared = accelerator.prepare(student, optimizer, loader)
    assert prepared is loader
    step = 0
    if resumes:
        accelerator.load_state(folder)
        if not loader.soft_dataset.ordered:  # which Accelerate leaves alone
            loader.load_state_dict(torch.load(folder / "stream.pt"))
        step = STOP
    while step < steps:
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == steps:
                break
    accelerator.save_state(folder)
    torch.save(loader.state_dict(), folder / "stream.pt")


def with_lightning(loader: Any, folder: Path, steps: int, resumes: bool, seen: list[int]) -> None:
    import lightning

    class Distilled(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.student = Student(seen)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.student(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Distilled(), loader, ckpt_path=folder / "stop.ckpt" if resumes else None)
    assert trainer.global_step == steps
    trainer.save_checkpoint(folder / "stop.ckpt")


@pytest.mark.parametrize(
    ("train", "workers", "ordered"),
    [
        (with_transformers, 0, True),
        (with_transformers, 2, False),
        (with_accelerate, 2, True),
        (with_accelerate, 0, False),
        (with_lightning, 0, True),
        (with_lightning, 2, False),
    ],
)
def test_a_run_that_resumes(
    train: Any, workers: int, ordered: bool, new: Callable[..., sf.SoftDataLoader], tmp_path: Path
) -> None:
    seen: list[int] = []
    first = new(ordered, workers)
    train(first, tmp_path, STOP, False, seen)
    # The state as the trainer saved it.
    assert first.state_dict()["batches"] == STOP
    first.close()
    second = new(ordered, workers)
    if ordered:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="samples come in no order")
            train(second, tmp_path, END, True, seen)
        assert seen == list(range(2 * END))
    else:
        with pytest.warns(UserWarning, match="samples come in no order"):
            train(second, tmp_path, END, True, seen)
        assert len(set(seen)) == 2 * END
    # Two batches completed the first epoch, and four belong to the second one.
    assert (second.stats.n_batches, second.state_dict()["batches"]) == (END - STOP, END - EPOCH)


def test_a_trainer_that_would_skip_is_told_what_to_do(
    new: Callable[..., sf.SoftDataLoader], tmp_path: Path
) -> None:
    with_transformers(new(True, 0), tmp_path, STOP, False, [])
    seen: list[int] = []
    with pytest.raises(sf.ConfigError, match="ignore_data_skip=True"):
        with_transformers(new(True, 0), tmp_path, END, True, seen, skips=True)
    assert not seen


def test_a_checkpoint_without_a_place_is_refused(tmp_path: Path) -> None:
    arguments, state = (
        SimpleNamespace(output_dir=str(tmp_path), process_index=1),
        SimpleNamespace(global_step=4),
    )
    loaded: list[Any] = []
    loader: Any = SimpleNamespace(state_dict=lambda: {"position": 8}, load_state_dict=loaded.append)
    callback = StreamCallback(loader)
    with pytest.raises(sf.ConfigError, match=r"step 4, and .*checkpoint-4/softs_stream_1.pt is missing"):
        callback.on_train_begin(arguments, state, None)
    callback.on_save(arguments, state, None)
    callback.on_train_begin(arguments, state, None)
    callback.on_train_begin(arguments, SimpleNamespace(global_step=0), None)
    assert loaded == [{"position": 8}]


@pytest.mark.parametrize("workers", [0, 2])
def test_accumulation_ends_with_the_last_batch_of_an_epoch(
    workers: int, new: Callable[..., sf.SoftDataLoader]
) -> None:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    loader, other = accelerator.prepare(new(True, workers)), new(True, workers)
    updates = []
    next(iter(loader))  # an iterator that is given up in the midst of its epoch
    for epoch in range(2):
        for step, _ in enumerate(loader):
            next(iter(other))  # no loader of Accelerate's
            with accelerator.accumulate():
                if accelerator.sync_gradients:
                    updates.append((epoch, step))
        assert not accelerator.gradient_state.in_dataloader
    assert updates == [(0, 3), (0, 5), (1, 3), (1, 5)]
