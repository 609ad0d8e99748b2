"""Worker processes under each default start method of Python: fork up to 3.13, forkserver from 3.14 on, or what a program has set."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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
        "1", frontend, CONFIG, ShmMedium, batch_size=2, num_workers=2, collate_fn=in_worker
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


LEAVES_IT = """
import multiprocessing, sys
import softs_fast as sf
config = sf.make_xy_config((1,), "int8", (1,), "int8")
ends = sys.argv[1:]
sf.StudentClient(0, 2, config, *ends[:3]).close()
sf.SoftIterableDataset("m", "ipc:///tmp/f", config, sf.ShmMedium)
sf.SoftDataLoader("m", "ipc:///tmp/f", config, sf.ShmMedium, num_workers=2, ordered=True)
print(multiprocessing.get_start_method(allow_none=True))
"""


def test_the_default_start_method_is_left_to_the_program(short_path: Path) -> None:
    ends = [f"ipc://{short_path}/{name}" for name in "fbc"]
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_IT, *ends], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_a_number_of_a_student_reaches_a_process_of_any_start_method(start_method: str) -> None:
    value = new_generation_value()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=send_when_set, args=(value, there))
    process.start()
    set_generation(value, 7)
    assert here.poll(30)
    assert here.recv() == 7
    process.join()
    process.close()
    here.close()
    there.close()


def send_when_set(value: Any, pipe: Any) -> None:
    while value.value == 0:
        time.sleep(0.001)
    pipe.send(value.value)
