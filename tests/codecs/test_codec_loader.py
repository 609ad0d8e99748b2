"""Codecs from a real supplier through a real broker into a student's batches, over each way that batches take."""

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from served import served
from waiting import WATCHDOG_S

from softs_fast import (
    BatchConfig,
    Broker,
    EndpointConfig,
    GeneratorFailed,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    Supplier,
    TCPMedium,
    TensorSpec,
    WireError,
)
from softs_fast.codecs import TopKLogits, topk_kl, topk_logits

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("hidden", (3, 700), "float32", codec="cast:bfloat16"),
        TensorSpec("logits", (3, 2000), "float32", codec="topk:7"),
        TensorSpec("grads", (4000,), "float32", codec="int8:64"),
        TensorSpec("x", (2, 5), "float16"),
    ]
)


def sample(number: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    return {
        "y": torch.tensor(number),
        "hidden": torch.randn(3, 700, generator=generator),
        "logits": torch.randn(3, 2000, generator=generator),
        "grads": torch.randn(4000, generator=generator),
        "x": torch.randn(2, 5, generator=generator).half(),
    }


def check(batch: dict[str, Any], n_rows: int) -> None:
    assert list(batch) == CONFIG.tensor_names
    assert batch["y"].shape == (n_rows,)
    for i, number in enumerate(batch["y"].tolist()):
        wanted = sample(number)
        assert torch.equal(batch["hidden"][i], wanted["hidden"].bfloat16().float())
        assert torch.equal(batch["x"][i], wanted["x"])
        top = topk_logits(wanted["logits"], 7)
        assert isinstance(batch["logits"], TopKLogits)
        assert torch.equal(batch["logits"].indices[i], top.indices)
        assert torch.equal(batch["logits"].values[i], top.values)
        torch.testing.assert_close(batch["logits"].lse[i], top.lse)
        half = wanted["grads"].abs().max() / 127 / 2
        assert (batch["grads"][i] - wanted["grads"]).abs().max() <= half * 1.0001


@pytest.fixture(params=[ShmMedium, TCPMedium])
def medium_cls(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["generator_fn", "batch_generator_fn"])
def endpoint(request: pytest.FixtureRequest, medium_cls: Any, frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which a supplier numbers its samples."""
    numbers = itertools.count()

    def one(product_id: str) -> dict[str, Any]:
        return sample(next(numbers))

    def many(product_id: str, n: int) -> dict[str, Any]:
        samples = [one(product_id) for _ in range(n)]
        return {name: torch.stack([each[name] for each in samples]) for name in CONFIG.tensor_names}

    function = (
        {"generator_fn": one}
        if request.param == "generator_fn"
        else {"batch_generator_fn": many, "max_batch": 3}
    )
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(
            product_ids=["m"],
            endpoint=backend,
            medium_cls=medium_cls,
            slot_size=CONFIG.nbytes(),
            batch_config=CONFIG,
            **function,
        ),  # type: ignore[arg-type]
    ):
        yield frontend


def test_batches(endpoint: str, medium_cls: Any) -> None:
    loader = SoftDataLoader("m", endpoint, CONFIG, medium_cls, num_slots=8, batch_size=4)
    seen = []
    for batch in itertools.islice(loader, 4):
        check(batch, 4)
        seen += batch["y"].tolist()
    assert len(set(seen)) == 16


def test_samples(endpoint: str, medium_cls: Any) -> None:
    data = SoftIterableDataset("m", endpoint, CONFIG, medium_cls, num_slots=4)
    for one in itertools.islice(data, 3):
        stacked = {
            name: TopKLogits(*(part[None] for part in value)) if isinstance(value, tuple) else value[None]
            for name, value in one.items()
        }
        check(stacked, 1)


@pytest.mark.parametrize("medium_cls", [ShmMedium])
@pytest.mark.parametrize("endpoint", ["generator_fn"], indirect=True)
@pytest.mark.parametrize("batch_size", [2, None])
def test_in_a_worker(endpoint: str, medium_cls: Any, batch_size: int | None) -> None:
    loader = SoftDataLoader(
        "m",
        endpoint,
        CONFIG,
        medium_cls,
        num_slots=4,
        batch_size=batch_size,
        num_workers=1,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    for _ in range(2):
        batch = next(batches)
        if batch_size is None:
            assert isinstance(batch["logits"], TopKLogits)
            assert batch["logits"].values.shape == (3, 7)
        else:
            check(batch, batch_size)
    del batches


@pytest.mark.parametrize("medium_cls", [ShmMedium])
@pytest.mark.parametrize("endpoint", ["batch_generator_fn"], indirect=True)
def test_a_batch_keeps_its_memory(endpoint: str, medium_cls: Any) -> None:
    loader = SoftDataLoader("m", endpoint, CONFIG, medium_cls, num_slots=8, batch_size=2)
    kept = list(itertools.islice(loader, 6))
    for batch in kept:
        check(batch, 2)
    student = torch.zeros(2, 3, 2000, requires_grad=True)
    topk_kl(student, kept[0]["logits"]).backward()
    assert student.grad is not None


@pytest.mark.parametrize("medium_cls", [ShmMedium, TCPMedium])
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_sample_that_no_encoder_wrote(
    medium_cls: Any, batch_size: int | None, frontend: str, backend: str
) -> None:
    good = CONFIG.encode(**sample(1))
    bad = bytearray(good)
    at = CONFIG.get_offset("logits")
    struct.pack_into("=H", bad, at + 3 * 7 * 4 + 2 * 9, 2000)
    supply = itertools.chain([bytes(bad)], itertools.repeat(good))
    with served(frontend, backend, lambda product_id: next(supply), ["m"], medium_cls, CONFIG.nbytes()):
        loader = SoftDataLoader("m", frontend, CONFIG, medium_cls, num_slots=2, batch_size=batch_size)
        with pytest.raises(
            WireError, match=r"cannot be decoded.*: index 2000 at element 9 is not within a row of 2000"
        ):
            next(iter(loader))
        # Its slot has gone back: with two slots, batches of two come again.
        for batch in itertools.islice(loader, 3):
            assert torch.as_tensor(batch["y"]).flatten().unique().tolist() == [1]


def test_what_a_codec_cannot_hold_reaches_the_student_as_the_generators_failure(
    frontend: str, backend: str
) -> None:
    def diverged(product_id: str) -> dict[str, Any]:
        return {**sample(0), "grads": torch.full((4000,), torch.nan)}

    with served(frontend, backend, diverged, ["m"], ShmMedium, CONFIG.nbytes(), batch_config=CONFIG):
        data = SoftIterableDataset("m", frontend, CONFIG, ShmMedium, request_timeout=WATCHDOG_S)
        with pytest.raises(
            GeneratorFailed, match=r'tensor "grads": element 0 is NaN, which int8 cannot hold; clamp it'
        ):
            next(iter(data))
