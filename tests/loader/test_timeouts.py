"""An iterator of any kind raises what it waits for after `request_timeout`, and goes on when it is there."""

import gc
import logging
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from served import served
from torch.utils.data import DataLoader, default_collate
from waiting import eventually

import softs_fast
from softs_fast import (
    Broker,
    DistillDataLoader,
    DistillIterableDataset,
    EndpointConfig,
    NoBroker,
    NoModel,
    NoSupplier,
    SampleTimeout,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    StudentClient,
    Supplier,
    Worker,
    _core,
)
from softs_fast.loader import wait_policy

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")
B = 4

#: How a loader iterates, by its arguments; those of torch are over the dataset.
PROCESSES = {"num_workers": 2, "multiprocessing_context": "fork"}
LOADERS: dict[str, dict[str, Any]] = {
    "no worker": {},
    "zero copy": {"zero_copy": True},
    "threads": {"num_workers": 2},
    "processes": PROCESSES,
    "collate_fn": {"collate_fn": default_collate},
}
TORCH: dict[str, dict[str, Any]] = {"torch": {}, "torch processes": PROCESSES}
KINDS = pytest.mark.parametrize("kind", ["dataset", *LOADERS, *TORCH])


def generate(product_id: str, sequence: int) -> bytes:
    return CONFIG.encode(x=torch.full((8,), float(sequence)), y=torch.tensor(sequence))


def first_item(items: Iterator[Any], *awaited: type[SampleTimeout]) -> Any:
    """The first item, after any number of these errors."""
    while True:
        try:
            return next(items)
        except awaited:
            continue


def until(items: Iterator[Any], cause: type[SampleTimeout], *before: type[SampleTimeout]) -> None:
    """Ask for items until the error is this one; it may be one of those before."""
    with pytest.raises(cause):
        first_item(items, *before)


def check_stream(items: Iterator[Any], kind: str) -> None:
    """Check that nothing was lost. torch drops what it has of a batch when an error interrupts it."""
    first = first_item(items, SampleTimeout)
    numbers = first["y"].reshape(-1).tolist()
    del first
    for _ in range(5):
        numbers += first_item(items, SampleTimeout)["y"].reshape(-1).tolist()
    if kind not in TORCH:
        assert numbers == list(range(len(numbers)))


@pytest.fixture
def _sweeps() -> Iterator[None]:
    """torch ends the workers of an iterator that has raised by a signal; the next client removes what they leave."""
    yield
    gc.collect()
    eventually(lambda: not multiprocessing.active_children(), "no worker")
    _core.sweep()


@KINDS
@pytest.mark.usefixtures("_sweeps")
def test_a_market_that_comes_bit_by_bit(frontend: str, backend: str, kind: str) -> None:
    first = ("m", frontend, CONFIG, ShmMedium)
    settings = {"num_slots": 16, "request_timeout": 0.2, "ordered": True}
    data: Any = (
        SoftDataLoader(*first, **settings, batch_size=B, **LOADERS[kind])
        if kind in LOADERS
        else SoftIterableDataset(*first, **settings)
    )
    items = iter(DataLoader(data, batch_size=B, **TORCH[kind]) if kind in TORCH else data)
    for _ in range(2):
        with pytest.raises(NoBroker, match="no broker at"):
            next(items)
    with Broker(EndpointConfig(frontend, backend)):
        until(items, NoSupplier, NoBroker)
        with Supplier(generate, ["m"], backend, ShmMedium, CONFIG.nbytes()):
            check_stream(items, kind)
            del items
    getattr(data, "soft_dataset", data).close()


@pytest.mark.parametrize("kind", ["dataset", "zero copy", "threads", "torch"])
@pytest.mark.usefixtures("_sweeps")
def test_a_school_that_comes_bit_by_bit(frontend: str, backend: str, kind: str) -> None:
    control, control_pub = f"{frontend}c", f"{frontend}p"
    with ExitStack() as stack:
        stack.enter_context(Broker(frontend, backend, control, control_pub))
        student = stack.enter_context(StudentClient(0, 4, CONFIG, frontend, control, control_pub))
        student.hello()
        arguments = dict(LOADERS.get(kind, {}))
        data = DistillIterableDataset(
            0,
            student.generation_value,
            16,
            CONFIG,
            frontend,
            request_timeout=0.2,
            ordered=True,
            zero_copy=arguments.pop("zero_copy", False),
        )
        stack.callback(data.close)
        over: Any = data
        if kind in LOADERS:
            over = DistillDataLoader(data, batch_size=B, **arguments)
        elif kind in TORCH:
            over = DataLoader(data, batch_size=B, **TORCH[kind])
        items = iter(over)
        for _ in range(2):
            with pytest.raises(NoModel):
                next(items)
        student.set_model("teacher")
        until(items, NoSupplier, NoModel)
        stack.enter_context(
            Worker(
                lambda model_id, model_cfg, sequence: generate(model_id, sequence),
                CONFIG.nbytes(),
                backend,
                control_pub,
            )
        )
        check_stream(items, kind)
        del items, over


def test_a_block_that_comes_back_late_is_waited_for(frontend: str, backend: str) -> None:
    with served(frontend, backend, generate, ["m"], ShmMedium, CONFIG.nbytes()):
        loader = SoftDataLoader("m", frontend, CONFIG, ShmMedium, 2 * B, batch_size=B, zero_copy=True)
        batches = iter(loader)
        held = [next(batches), next(batches)]
        timer = threading.Timer(1.5, held.clear)
        timer.start()
        assert next(batches)["y"].shape == (B,)
        timer.join()


def test_a_dataset_that_waits_for_ever_says_what_for(
    frontend: str,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(wait_policy, "_REPORT_S", 0.1)
    caplog.set_level(logging.INFO, logger="softs_fast")
    control, control_pub = f"{frontend}c", f"{frontend}p"

    def reports(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    with (
        Broker(frontend, backend, control, control_pub),
        StudentClient(0, 4, CONFIG, frontend, control, control_pub) as student,
    ):
        student.hello()
        data = DistillIterableDataset(0, student.generation_value, 16, CONFIG, frontend)
        taken: list[Any] = []
        waiting = threading.Thread(target=lambda: taken.append(next(iter(data))))
        waiting.start()
        eventually(lambda: reports("still waiting: no sample within") >= 2, "two reports")
        assert reports("there is no model yet") >= 2
        student.set_model("teacher")
        eventually(lambda: reports("no supplier for it at"), "another cause")
        with Worker(
            lambda model_id, model_cfg, sequence: generate(model_id, sequence),
            CONFIG.nbytes(),
            backend,
            control_pub,
        ):
            waiting.join()
        assert taken[0]["y"] == 0
