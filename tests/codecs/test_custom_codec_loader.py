"""A codec of a user's from a supplier through a broker into batches, over each way that batches take."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nibbles import Nibbles
from served import served

from softs_fast import (
    BatchConfig,
    Broker,
    ConfigError,
    CudaIpcMedium,
    DistillDataLoader,
    DistillIterableDataset,
    EndpointConfig,
    GeneratorFailed,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    StudentClient,
    Supplier,
    SuppliersBusy,
    TCPMedium,
    TensorSpec,
    WireError,
    Worker,
    make_collate_fn,
)
from softs_fast.market import Client

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("x", (3, 6), "float32", codec=Nibbles(0.25)),
        # Its bytes make the sample a multiple of 8, so that it can be one of zero copy.
        TensorSpec("z", (12,), "float32", codec="nibbles:2.0"),
        TensorSpec("pad", (7,), "uint8"),
    ]
)


def sample(number: int) -> dict[str, torch.Tensor]:
    digits = (torch.arange(30) * 7 + number) % 16
    return {
        "y": torch.tensor(number),
        "x": digits[:18].view(3, 6) * 0.25,
        "z": digits[18:] * 2.0,
        "pad": torch.full((7,), number % 256, dtype=torch.uint8),
    }


def stacked(numbers: Iterator[int], n: int) -> dict[str, torch.Tensor]:
    samples = [sample(number) for number in itertools.islice(numbers, n)]
    return {name: torch.stack([each[name] for each in samples]) for name in CONFIG.tensor_names}


def check(batch: dict[str, torch.Tensor], n_rows: int) -> list[int]:
    """Check all samples of a batch; their numbers."""
    assert list(batch) == CONFIG.tensor_names
    numbers: list[int] = batch["y"].tolist()
    assert len(numbers) == n_rows
    for i, number in enumerate(numbers):
        for name, tensor in sample(number).items():
            assert torch.equal(batch[name][i], tensor)
    return numbers


@pytest.fixture(params=[ShmMedium, TCPMedium])
def medium_cls(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def endpoint(medium_cls: Any, frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which a supplier numbers its samples."""
    numbers = itertools.count()
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(
            batch_generator_fn=lambda product_id, n: stacked(numbers, n),
            product_ids=["m"],
            endpoint=backend,
            medium_cls=medium_cls,
            batch_config=CONFIG,
        ),
    ):
        yield frontend


only_shm = pytest.mark.parametrize("medium_cls", [ShmMedium], indirect=True)


def test_copied_batches_keep_their_memory(endpoint: str, medium_cls: Any) -> None:
    loader = SoftDataLoader("m", endpoint, CONFIG, medium_cls, num_slots=8, batch_size=4)
    batches = list(itertools.islice(loader, 5))
    assert len({number for batch in batches for number in check(batch, 4)}) == 20


@only_shm
def test_batches_that_threads_gather_ahead(endpoint: str) -> None:
    loader = SoftDataLoader(
        "m", endpoint, CONFIG, ShmMedium, num_slots=8, batch_size=4, num_workers=2, ordered=True
    )
    batches = list(itertools.islice(loader, 6))
    assert [len(check(batch, 4)) for batch in batches] == [4] * 6


@only_shm
def test_batches_on_the_slots(endpoint: str) -> None:
    loader = SoftDataLoader("m", endpoint, CONFIG, ShmMedium, num_slots=8, batch_size=4, zero_copy=True)
    seen = []
    for batch in itertools.islice(loader, 5):
        seen += check(batch, 4)
        # The others lie on the slots, one sample after the other.
        assert batch["pad"].stride(0) > 7
        assert batch["x"].is_contiguous()
    assert len(set(seen)) == 20
    del batch


@only_shm
@pytest.mark.parametrize("zero_copy", [False, True])
def test_single_samples(endpoint: str, zero_copy: bool) -> None:
    data = SoftIterableDataset("m", endpoint, CONFIG, ShmMedium, num_slots=4, zero_copy=zero_copy)
    for one in itertools.islice(data, 3):
        check({name: tensor.unsqueeze(0) for name, tensor in one.items()}, 1)
    del one


@only_shm
def test_in_a_worker_process(endpoint: str) -> None:
    loader = SoftDataLoader(
        "m",
        endpoint,
        CONFIG,
        ShmMedium,
        num_slots=4,
        batch_size=2,
        num_workers=1,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    for _ in range(2):
        check(next(batches), 2)
    del batches


@only_shm
def test_slots_that_the_caller_took(endpoint: str) -> None:
    with Client(endpoint, ShmMedium, CONFIG.nbytes(), 4) as client:
        slots = [client.request_sample("m", timeout_ms=10_000) for _ in range(3)]
        assert None not in slots
        batch = make_collate_fn(client, CONFIG)(slots)  # type: ignore[arg-type]
        check(batch.tensors, 3)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_models(short_path: Path, zero_copy: bool) -> None:
    paths = [f"ipc://{short_path}/{i}" for i in range(4)]
    frontend, backend, control, control_pub = paths

    def generate(model_id: str, model_cfg: Any) -> dict[str, torch.Tensor]:
        return sample(int(model_id))

    with contextlib.ExitStack() as stack:
        stack.enter_context(Broker(*paths))
        stack.enter_context(
            Worker(
                generator_fn=generate,
                backend_endpoint=backend,
                control_pub_endpoint=control_pub,
                batch_config=CONFIG,
            )
        )
        client = stack.enter_context(StudentClient(0, 4, CONFIG, frontend, control, control_pub))
        client.hello()
        data = DistillIterableDataset(0, client.generation_value, 8, CONFIG, frontend, zero_copy=zero_copy)
        batches = None
        for model in (5, 9):
            client.set_model(str(model))
            ref = client.request_sample(timeout_ms=10_000)
            one = ref.tensors()
            assert check({name: tensor.unsqueeze(0) for name, tensor in one.items()}, 1) == [model]
            client.release_slot(ref.slot_id)
            batches = batches or iter(DistillDataLoader(data, batch_size=4))
            assert check(next(batches), 4) == [model] * 4


@pytest.mark.parametrize(
    ("medium_cls", "options"),
    [
        (ShmMedium, {}),
        (ShmMedium, {"num_workers": 1}),
        (ShmMedium, {"zero_copy": True}),
        (ShmMedium, {"batch_size": None}),
        (TCPMedium, {}),
        (TCPMedium, {"batch_size": None}),
    ],
)
def test_a_sample_that_the_codec_does_not_write(
    medium_cls: Any, options: dict[str, Any], frontend: str, backend: str
) -> None:
    good = CONFIG.encode(**sample(1))
    bad = bytearray(good)
    bad[CONFIG.get_offset("z")] ^= 1
    supply = itertools.chain([bytes(bad)], itertools.repeat(good))
    with served(frontend, backend, lambda product_id: next(supply), ["m"], medium_cls, CONFIG.nbytes()):
        loader = SoftDataLoader(
            "m", frontend, CONFIG, medium_cls, **{"num_slots": 4, "batch_size": 2, **options}
        )
        with pytest.raises(
            WireError, match=r'tensor "z" cannot be decoded by codec "nibbles:2.0": a row begins'
        ):
            list(itertools.islice(loader, 4))
        # Its slot was released: with four slots, batches go on.
        for batch in itertools.islice(loader, 6):
            assert torch.as_tensor(batch["y"]).flatten().unique().tolist() == [1]
        del batch


def test_a_value_that_it_cannot_hold_reaches_the_student(frontend: str, backend: str) -> None:
    def generate(product_id: str) -> dict[str, Any]:
        return {**sample(0), "x": torch.full((3, 6), 100.0)}

    with served(frontend, backend, generate, ["m"], ShmMedium, CONFIG.nbytes(), batch_config=CONFIG):
        data = SoftIterableDataset("m", frontend, CONFIG, ShmMedium, request_timeout=0.2)
        batches = iter(data)

        def receive() -> None:
            while True:
                # On a loaded machine the first call of the generator may take longer than a request.
                with contextlib.suppress(SuppliersBusy):
                    next(batches)

        with pytest.raises(GeneratorFailed, match='tensor "x": nibbles stores 0 to 15'):
            receive()


def test_pinned_batches_are_pinned_after_they_were_decoded(
    monkeypatch: pytest.MonkeyPatch, frontend: str, backend: str
) -> None:
    pinned = []

    def record(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tuple(tensor.shape))
        return tensor

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **rest: empty(*shape, **rest))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", record)
    with served(frontend, backend, lambda product_id: sample(3), ["m"], ShmMedium, batch_config=CONFIG):
        loader = SoftDataLoader("m", frontend, CONFIG, ShmMedium, num_slots=4, batch_size=2, pin_memory=True)
        check(next(iter(loader)), 2)
        loader.soft_dataset.close()
    assert {(2, 3, 6), (2, 12)} <= set(pinned)


def test_where_no_codec_can_be() -> None:
    with pytest.raises(ConfigError, match='fill_fn fills tensors in place, but "x" is stored as nibbles'):
        Supplier(
            fill_fn=lambda product_id, out: None,
            product_ids=["m"],
            endpoint="ipc:///nowhere",
            batch_config=CONFIG,
        )
    with pytest.raises(ConfigError, match='tensor "x" is stored as nibbles'):
        CONFIG.views(bytearray(CONFIG.nbytes()))
    with pytest.raises(ConfigError, match='tensor "x" is stored as nibbles'):
        SoftIterableDataset("m", "ipc:///nowhere", CONFIG, CudaIpcMedium)
