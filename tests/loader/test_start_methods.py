"""Worker processes under each default start method of Python: fork up to 3.13, forkserver from 3.14 on, or what a program has set."""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from served import served

import softs_fast
from softs_fast import (
    Broker,
    DistillDataLoader,
    DistillIterableDataset,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    StudentClient,
    Worker,
)
from softs_fast.distill.shared_generation import new_generation_value, set_generation

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")


@pytest.fixture(params=["forkserver", "spawn"])
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    """The default start method for the time of a test."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


def generate(product_id: str) -> bytes:
    return CONFIG.encode(x=torch.full((8,), float(product_id)), y=torch.tensor(int(product_id)))


def in_worker(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A user's own collate_fn, which tells where it runs."""
    batch: dict[str, torch.Tensor] = torch.utils.data.default_collate(samples)
    return {**batch, "pid": torch.tensor(os.getpid())}


def check(batch: dict[str, torch.Tensor], product: int) -> None:
    assert batch["y"].tolist() == [product] * 2
    assert batch["x"].eq(product).all()
    assert batch["pid"] != os.getpid()


def test_workers_of_a_loader_follow_the_model(start_method: str, frontend: str, backend: str) -> None:
    loader = SoftDataLoader(
        "1", frontend, CONFIG, ShmMedium, batch_size=2, num_workers=1, collate_fn=in_worker
    )
    with served(frontend, backend, generate, [r"\d"], ShmMedium, CONFIG.nbytes()):
        batches = iter(loader)
        for product in (1, 2, 1, 3):
            loader.set_model(str(product))
            for _ in range(5):
                check(next(batches), product)
        del batches
    assert multiprocessing.get_start_method() == start_method


@pytest.mark.parametrize("start_method", ["forkserver"], indirect=True)
def test_workers_of_torchs_own_loader(start_method: str, frontend: str, backend: str) -> None:
    data = SoftIterableDataset("4", frontend, CONFIG, ShmMedium)
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, collate_fn=in_worker)
    with served(frontend, backend, generate, [r"\d"], ShmMedium, CONFIG.nbytes()):
        batches = iter(loader)
        for _ in range(10):
            check(next(batches), 4)
        del batches


def of_model(model_id: str, model_cfg: Any, sequence: int, rank: int) -> dict[str, Any]:
    return {"x": torch.full((8,), float(model_id)), "y": int(model_id)}


@pytest.mark.parametrize("start_method", ["forkserver"], indirect=True)
def test_workers_follow_the_model_of_a_student(start_method: str, short_path: Path) -> None:
    frontend, backend, control, control_pub = (f"ipc://{short_path}/{name}" for name in "fbcp")
    with contextlib.ExitStack() as stack:
        stack.enter_context(Broker(frontend, backend, control, control_pub))
        stack.enter_context(Worker(of_model, 0, backend, control_pub, batch_config=CONFIG))
        client = stack.enter_context(StudentClient(0, 8, CONFIG, frontend, control, control_pub))
        client.set_model("1")
        data = DistillIterableDataset(0, client.generation_value, 8, CONFIG, frontend)
        batches = iter(DistillDataLoader(data, batch_size=2, num_workers=2, collate_fn=in_worker))
        for model in (1, 2, 3):
            client.set_model(str(model))
            for _ in range(5):
                check(next(batches), model)
        del batches


def leaves_it(say: object, rank: int, size: int, *ends: str) -> str | None:
    """The default start method of a new program after it has made what shares memory or starts workers."""
    multiprocessing.set_start_method(None, force=True)
    StudentClient(0, 2, CONFIG, *ends).close()
    SoftIterableDataset("m", ends[0], CONFIG, ShmMedium)
    SoftDataLoader("m", ends[0], CONFIG, ShmMedium, num_workers=2, ordered=True)
    return multiprocessing.get_start_method(allow_none=True)


def test_the_default_start_method_is_left_to_the_program(short_path: Path) -> None:
    ends = [f"ipc://{short_path}/{name}" for name in "fbc"]
    assert ranks.run(leaves_it, 1, *ends) == [None]


def test_a_number_of_a_student_is_shared_with_a_process_of_any_start_method(start_method: str) -> None:
    value = new_generation_value()
    # Its module needs no torch, which takes seconds to import.
    process = multiprocessing.Process(target=set_generation, args=(value, 7))
    process.start()
    process.join()
    process.close()
    assert value.value == 7
