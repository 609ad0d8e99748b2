"""Codecs, native ones and a user's, from a supplier through a broker into batches, over each way that batches take."""

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from softs_fast.codecs import TopKLogits, topk_kl, topk_logits
from softs_fast.market import Client

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@dataclass(frozen=True)
class Coded:
    """A configuration with codecs, its samples by number, and what is no sample of it.

    Attributes:
        config: The configuration.
        sample: Makes the sample with a number.
        check_row: Checks a row of a batch against the sample with its number.
        spoil: Makes a sample into one that no encoder writes.
        spoilt: What is said of that, a pattern.
        unheld: Values that a codec cannot hold.
        refused: What is said of these, a pattern.
    """

    config: BatchConfig
    sample: Callable[[int], dict[str, torch.Tensor]]
    check_row: Callable[[dict[str, Any], int, dict[str, torch.Tensor]], None]
    spoil: Callable[[bytearray], None]
    spoilt: str
    unheld: dict[str, torch.Tensor]
    refused: str

    def check(self, batch: dict[str, Any], n_rows: int) -> list[int]:
        """Check all samples of a batch; their numbers."""
        assert list(batch) == self.config.tensor_names
        numbers: list[int] = batch["y"].tolist()
        assert len(numbers) == n_rows
        for i, number in enumerate(numbers):
            self.check_row(batch, i, self.sample(number))
        return numbers


NATIVE_CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("hidden", (3, 700), "float32", codec="cast:bfloat16"),
        TensorSpec("logits", (3, 2000), "float32", codec="topk:7"),
        TensorSpec("grads", (4000,), "float32", codec="int8:64"),
        TensorSpec("x", (2, 5), "float16"),
    ]
)


def native_sample(number: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return {
        "y": torch.tensor(number),
        "hidden": torch.randn(3, 700, generator=generator),
        "logits": torch.randn(3, 2000, generator=generator),
        "grads": torch.randn(4000, generator=generator),
        "x": torch.randn(2, 5, generator=generator).half(),
    }


def check_native(batch: dict[str, Any], i: int, wanted: dict[str, torch.Tensor]) -> None:
    assert torch.equal(batch["hidden"][i], wanted["hidden"].bfloat16().float())
    assert torch.equal(batch["x"][i], wanted["x"])
    top = topk_logits(wanted["logits"], 7)
    assert isinstance(batch["logits"], TopKLogits)
    assert torch.equal(batch["logits"].indices[i], top.indices)
    assert torch.equal(batch["logits"].values[i], top.values)
    torch.testing.assert_close(batch["logits"].lse[i], top.lse)
    half = wanted["grads"].abs().max() / 127 / 2
    assert (batch["grads"][i] - wanted["grads"]).abs().max() <= half * 1.0001


def spoil_native(sample: bytearray) -> None:
    struct.pack_into("=H", sample, NATIVE_CONFIG.get_offset("logits") + 3 * 7 * 4 + 2 * 9, 2000)


NATIVE = Coded(
    NATIVE_CONFIG,
    native_sample,
    check_native,
    spoil_native,
    r"cannot be decoded.*: index 2000 at element 9 is not within a row of 2000",
    {"grads": torch.full((4000,), torch.nan)},
    'tensor "grads": element 0 is NaN, which int8 cannot hold; clamp it',
)

OWN_CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("x", (3, 6), "float32", codec=Nibbles(0.25)),
        # Its bytes make the sample a multiple of 8, so that it can be one of zero copy.
        TensorSpec("z", (12,), "float32", codec="nibbles:2.0"),
        TensorSpec("pad", (7,), "uint8"),
    ]
)


def own_sample(number: int) -> dict[str, torch.Tensor]:
    digits = (torch.arange(30) * 7 + number) % 16
    return {
        "y": torch.tensor(number),
        "x": digits[:18].view(3, 6) * 0.25,
        "z": digits[18:] * 2.0,
        "pad": torch.full((7,), number % 256, dtype=torch.uint8),
    }


def check_own(batch: dict[str, Any], i: int, wanted: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(batch[name][i], tensor) for name, tensor in wanted.items())


def spoil_own(sample: bytearray) -> None:
    sample[OWN_CONFIG.get_offset("z")] ^= 1


OWN = Coded(
    OWN_CONFIG,
    own_sample,
    check_own,
    spoil_own,
    r'tensor "z" cannot be decoded by codec "nibbles:2.0": a row begins',
    {"x": torch.full((3, 6), 100.0)},
    'tensor "x": nibbles stores 0 to 15',
)


@pytest.fixture(params=[NATIVE, OWN], ids=["native", "own"])
def coded(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[ShmMedium, TCPMedium])
def medium_cls(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["generator_fn", "batch_generator_fn"])
def endpoint(
    request: pytest.FixtureRequest, coded: Coded, medium_cls: Any, frontend: str, backend: str
) -> Iterator[str]:
    """A frontend behind which a supplier numbers its samples."""
    numbers = itertools.count()

    def one(product_id: str) -> dict[str, Any]:
        return coded.sample(next(numbers))

    def many(product_id: str, n: int) -> dict[str, Any]:
        samples = [one(product_id) for _ in range(n)]
        return {name: torch.stack([each[name] for each in samples]) for name in coded.config.tensor_names}

    function: dict[str, Any] = {"batch_generator_fn": many, "max_batch": 3}
    if request.param == "generator_fn":
        function = {"generator_fn": one}
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(
            product_ids=["m"],
            endpoint=backend,
            medium_cls=medium_cls,
            batch_config=coded.config,
            **function,
        ),
    ):
        yield frontend


only_own = pytest.mark.parametrize("coded", [OWN], indirect=True, ids=["own"])
only_shm = pytest.mark.parametrize("medium_cls", [ShmMedium], indirect=True)
batches_alone = pytest.mark.parametrize("endpoint", ["batch_generator_fn"], indirect=True)


def test_batches_keep_their_memory(endpoint: str, coded: Coded, medium_cls: Any) -> None:
    loader = SoftDataLoader("m", endpoint, coded.config, medium_cls, num_slots=8, batch_size=4)
    batches = list(itertools.islice(loader, 5))
    assert len({number for batch in batches for number in coded.check(batch, 4)}) == 20
    if coded is NATIVE:
        student = torch.zeros(4, 3, 2000, requires_grad=True)
        topk_kl(student, batches[0]["logits"]).backward()
        assert student.grad is not None


@only_shm
@batches_alone
@only_own
def test_batches_that_threads_gather_ahead(endpoint: str, coded: Coded) -> None:
    loader = SoftDataLoader(
        "m", endpoint, coded.config, ShmMedium, num_slots=8, batch_size=4, num_workers=2, ordered=True
    )
    batches = list(itertools.islice(loader, 6))
    assert [len(coded.check(batch, 4)) for batch in batches] == [4] * 6


@only_shm
@batches_alone
@only_own
def test_batches_on_the_slots(endpoint: str, coded: Coded) -> None:
    loader = SoftDataLoader("m", endpoint, coded.config, ShmMedium, num_slots=8, batch_size=4, zero_copy=True)
    seen = []
    for batch in itertools.islice(loader, 5):
        seen += coded.check(batch, 4)
        # The others lie on the slots, one sample after the other.
        assert batch["pad"].stride(0) > 7
        assert batch["x"].is_contiguous()
    assert len(set(seen)) == 20
    del batch


@batches_alone
@pytest.mark.parametrize(
    ("coded", "medium_cls", "zero_copy"),
    [
        (NATIVE, ShmMedium, False),
        (NATIVE, TCPMedium, False),
        (OWN, ShmMedium, False),
        (OWN, ShmMedium, True),
    ],
    indirect=["coded", "medium_cls"],
)
def test_single_samples(endpoint: str, coded: Coded, medium_cls: Any, zero_copy: bool) -> None:
    data = SoftIterableDataset("m", endpoint, coded.config, medium_cls, num_slots=4, zero_copy=zero_copy)
    for one in itertools.islice(data, 3):
        coded.check({name: row_of_one(value) for name, value in one.items()}, 1)
    del one


def row_of_one(value: Any) -> Any:
    return TopKLogits(*(part[None] for part in value)) if isinstance(value, tuple) else value[None]


@only_shm
@batches_alone
@pytest.mark.parametrize("batch_size", [2, None])
def test_in_a_worker_process(endpoint: str, coded: Coded, batch_size: int | None) -> None:
    loader = SoftDataLoader(
        "m",
        endpoint,
        coded.config,
        ShmMedium,
        num_slots=4,
        batch_size=batch_size,
        num_workers=1,
        multiprocessing_context="fork",
    )
    batches = iter(loader)
    for _ in range(2):
        batch = next(batches)
        if batch_size is None:
            batch = {name: row_of_one(value) for name, value in batch.items()}
        coded.check(batch, batch_size or 1)
    del batches


@only_shm
@batches_alone
@only_own
def test_slots_that_the_caller_took(endpoint: str, coded: Coded) -> None:
    with Client(endpoint, ShmMedium, coded.config.nbytes(), 4) as client:
        slots = [client.request_sample("m", timeout_ms=10_000) for _ in range(3)]
        assert None not in slots
        batch = make_collate_fn(client, coded.config)(slots)  # type: ignore[arg-type]
        coded.check(batch.tensors, 3)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_models(short_path: Path, zero_copy: bool) -> None:
    paths = [f"ipc://{short_path}/{i}" for i in range(4)]
    frontend, backend, control, control_pub = paths

    def generate(model_id: str, model_cfg: Any) -> dict[str, torch.Tensor]:
        return own_sample(int(model_id))

    with contextlib.ExitStack() as stack:
        stack.enter_context(Broker(*paths))
        stack.enter_context(
            Worker(
                generator_fn=generate,
                backend_endpoint=backend,
                control_pub_endpoint=control_pub,
                batch_config=OWN.config,
            )
        )
        client = stack.enter_context(StudentClient(0, 4, OWN.config, frontend, control, control_pub))
        client.hello()
        data = DistillIterableDataset(
            0, client.generation_value, 8, OWN.config, frontend, zero_copy=zero_copy
        )
        batches = None
        for model in (5, 9):
            client.set_model(str(model))
            ref = client.request_sample(timeout_ms=10_000)
            one = ref.tensors()
            assert OWN.check({name: tensor.unsqueeze(0) for name, tensor in one.items()}, 1) == [model]
            client.release_slot(ref.slot_id)
            batches = batches or iter(DistillDataLoader(data, batch_size=4))
            assert OWN.check(next(batches), 4) == [model] * 4


@pytest.mark.parametrize(
    ("coded", "medium_cls", "options"),
    [
        *itertools.product([NATIVE, OWN], [ShmMedium, TCPMedium], [{}, {"batch_size": None}]),
        (OWN, ShmMedium, {"num_workers": 1}),
        (OWN, ShmMedium, {"zero_copy": True}),
    ],
    indirect=["coded", "medium_cls"],
)
def test_a_sample_that_no_encoder_wrote(
    coded: Coded, medium_cls: Any, options: dict[str, Any], frontend: str, backend: str
) -> None:
    good = coded.config.encode(**coded.sample(1))
    bad = bytearray(good)
    coded.spoil(bad)
    supply = itertools.chain([bytes(bad)], itertools.repeat(good))
    with served(frontend, backend, lambda product_id: next(supply), ["m"], medium_cls, coded.config.nbytes()):
        loader = SoftDataLoader(
            "m", frontend, coded.config, medium_cls, **{"num_slots": 4, "batch_size": 2, **options}
        )
        with pytest.raises(WireError, match=coded.spoilt):
            list(itertools.islice(loader, 4))
        # Its slot was released: with four slots, batches go on.
        for batch in itertools.islice(loader, 6):
            assert torch.as_tensor(batch["y"]).flatten().unique().tolist() == [1]
        del batch


def test_a_value_that_it_cannot_hold_reaches_the_student(coded: Coded, frontend: str, backend: str) -> None:
    def generate(product_id: str) -> dict[str, Any]:
        return {**coded.sample(0), **coded.unheld}

    with served(
        frontend, backend, generate, ["m"], ShmMedium, coded.config.nbytes(), batch_config=coded.config
    ):
        data = SoftIterableDataset("m", frontend, coded.config, ShmMedium, request_timeout=0.2)
        batches = iter(data)

        def receive() -> None:
            while True:
                # On a loaded machine the first call of the generator may take longer than a request.
                with contextlib.suppress(SuppliersBusy):
                    next(batches)

        with pytest.raises(GeneratorFailed, match=coded.refused):
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
    with served(
        frontend, backend, lambda product_id: own_sample(3), ["m"], ShmMedium, batch_config=OWN.config
    ):
        loader = SoftDataLoader(
            "m", frontend, OWN.config, ShmMedium, num_slots=4, batch_size=2, pin_memory=True
        )
        OWN.check(next(iter(loader)), 2)
        loader.soft_dataset.close()
    assert {(2, 3, 6), (2, 12)} <= set(pinned)


def test_where_no_codec_can_be() -> None:
    with pytest.raises(ConfigError, match='fill_fn fills tensors in place, but "x" is stored as nibbles'):
        Supplier(
            fill_fn=lambda product_id, out: None,
            product_ids=["m"],
            endpoint="ipc:///nowhere",
            batch_config=OWN.config,
        )
    with pytest.raises(ConfigError, match='tensor "x" is stored as nibbles'):
        OWN.config.views(bytearray(OWN.config.nbytes()))
    with pytest.raises(ConfigError, match='tensor "x" is stored as nibbles'):
        SoftIterableDataset("m", "ipc:///nowhere", OWN.config, CudaIpcMedium)
