"""Samples from teachers in other processes onto the device of this one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from cuda_market import CudaMarket, serve

from softs_fast import (
    BatchConfig,
    Client,
    ConfigError,
    CudaIpcMedium,
    GeneratorFailed,
    SampleTimeout,
    SegmentError,
    SoftDataLoader,
    SoftIterableDataset,
    Supplier,
    SuppliersBusy,
    TensorSpec,
    _kernels,
)
from softs_fast.gpu.checks.maker import KINDS
from softs_fast.gpu.checks.on_device import to_device
from softs_fast.gpu.checks.samples import CONFIGS, EVERY, LARGE, batch, check, sample
from softs_fast.tensors import cuda

B = 4

Loaders = Callable[..., SoftDataLoader]


@pytest.fixture
def loader(school: CudaMarket) -> Iterator[Loaders]:
    """Make loaders, which are closed in the end."""
    made = []

    def make(product: str, config: BatchConfig, **arguments: Any) -> SoftDataLoader:
        arguments = {"num_slots": 4 * B, "batch_size": B, "ordered": True, **arguments}
        endpoint = arguments.pop("endpoint", school.endpoints.frontend)
        made.append(SoftDataLoader(product, endpoint, config, CudaIpcMedium, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.soft_dataset.close()


def take(loader: SoftDataLoader, config: BatchConfig, n: int, first: int = 0) -> None:
    """Take and check the next n batches; none is kept."""
    for i, got in zip(range(first, first + n), loader, strict=False):
        check(config, got, list(range(i * B, (i + 1) * B)))
        assert all(cuda.device_of(tensor) == 0 for tensor in got.values() if tensor.numel())


@pytest.mark.parametrize(
    ("kind", "zero_copy"), [*((kind, False) for kind in KINDS), ("sample", True), ("fill bytes", True)]
)
def test_every_kind_of_generator_and_every_dtype(loader: Loaders, kind: str, zero_copy: bool) -> None:
    take(loader(f"every/{kind}/device", EVERY, zero_copy=zero_copy), EVERY, 12)


@pytest.mark.parametrize(
    ("kind", "where"), [("sample", "host"), ("batch", "array"), ("sample", "mixed"), ("batch", "mixed")]
)
def test_tensors_from_the_host(loader: Loaders, kind: str, where: str) -> None:
    take(loader(f"every/{kind}/{where}", EVERY), EVERY, 6)


@pytest.mark.parametrize(
    ("config", "kind", "where"),
    [
        ("every", "batch", "device"),
        ("every", "sample", "host"),
        ("unaligned", "sample", "device"),
        ("unaligned", "batch", "host"),
        ("unaligned", "sample", "array"),
        ("unaligned", "batch", "mixed"),
    ],
)
def test_floats_are_cast_on_the_way(loader: Loaders, kind: str, config: str, where: str) -> None:
    take(loader(f"{config}/{kind}/{where}/wide", CONFIGS[config]), CONFIGS[config], 4)


def test_single_samples_are_tensors_on_the_device(school: CudaMarket) -> None:
    for zero_copy in (False, True):
        dataset = SoftIterableDataset(
            "every/sample/device",
            school.endpoints.frontend,
            EVERY,
            CudaIpcMedium,
            ordered=True,
            zero_copy=zero_copy,
        )
        for i, got in zip(range(20), dataset, strict=False):
            check(EVERY, {name: tensor[None] for name, tensor in got.items()}, [i])
            del got
        dataset.close()


def test_a_client_reads_bytes(school: CudaMarket) -> None:
    """Slot by slot: the first orders go by the broker, the others through lanes."""
    client = Client(school.endpoints.frontend, CudaIpcMedium, EVERY.nbytes(), 3, ordered=True)
    with client:
        for i in range(30):
            slot = client.request_sample("every/batch/device", timeout_ms=20_000)
            assert slot is not None
            wanted = EVERY.encode(**sample(EVERY, i))
            assert client.medium.read(slot) == wanted
            part = bytearray(10)
            client.medium.read_into(slot, part, 5)  # type: ignore[attr-defined]
            assert part == wanted[5:15]
            client.release_slot(slot)
        with pytest.raises(SegmentError, match="no slot 3"):
            client.medium.read(3)
        with pytest.raises(ConfigError, match="lie on a device"):
            client.gather("p", 1, 0, [(0, bytearray(4))], 0)


def test_in_one_process(cuda_market: CudaMarket, loader: Loaders) -> None:
    """CUDA opens no handles of its own process; the supplier finds the arena in another way."""

    def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, torch.Tensor]:
        return batch(LARGE, list(sequences))

    arguments: Any = {"batch_generator_fn": generate, "batch_config": LARGE}
    with Supplier(None, ["p"], cuda_market.endpoints.backend, CudaIpcMedium, LARGE.nbytes(), **arguments):
        for zero_copy in (False, True):
            one = loader("p", LARGE, zero_copy=zero_copy, endpoint=cuda_market.endpoints.frontend)
            take(one, LARGE, 5)
            one.soft_dataset.close()


def test_several_teachers_make_one_stream(cuda_market: CudaMarket, loader: Loaders) -> None:
    for kind in ("sample", "batch", "fill"):
        cuda_market.teacher(serve("large", kind), environment={"SOFTS_STANDIN_DELAY_US": "300"})
    take(loader("p", LARGE, endpoint=cuda_market.endpoints.frontend), LARGE, 20)


def test_two_clients_of_one_teacher(loader: Loaders) -> None:
    loaders = [iter(loader("every/batch/device", EVERY, zero_copy=zero_copy)) for zero_copy in (False, True)]
    for i in range(5):
        for one in loaders:
            check(EVERY, next(one), list(range(i * B, (i + 1) * B)))


def test_nothing_is_torn_under_delays(cuda_market: CudaMarket, loader: Loaders) -> None:
    """Each step of a teacher's work on the device takes its time, and slots are used again at once."""
    teacher = cuda_market.teacher(serve("large", "batch"), environment={"SOFTS_STANDIN_DELAY_US": "50000"})
    for zero_copy in (False, True):
        one = loader(
            "p",
            LARGE,
            num_slots=2 * B,
            debug=True,
            zero_copy=zero_copy,
            endpoint=cuda_market.endpoints.frontend,
        )
        take(one, LARGE, 8)
        one.soft_dataset.close()
    assert teacher.logs == []


def test_what_is_still_read_is_not_overwritten(school: CudaMarket) -> None:
    """Slots go back while a stream has yet to come to them."""
    n_slots, n_bytes = 3, LARGE.nbytes()
    stream = _kernels.CudaStream(0)
    ballast = [cuda.empty((64 << 20,), "uint8", 0) for _ in range(2)]
    taken = cuda.empty((4 * n_slots, n_bytes), "uint8", 0)
    client = Client(school.endpoints.frontend, CudaIpcMedium, n_bytes, n_slots, ordered=True)
    with client:
        medium = client.medium
        assert isinstance(medium, CudaIpcMedium)
        for row in taken:
            slot = client.request_sample("large/batch/device", timeout_ms=20_000)
            assert slot is not None
            address = medium.settle(slot)
            assert address is not None
            # Work for some tens of milliseconds, and then the sample is read.
            for _ in range(4):
                _kernels.cuda_copy(*(b.data_ptr() for b in ballast), ballast[0].nbytes, stream.handle)
            _kernels.cuda_copy(row.data_ptr(), address, n_bytes, stream.handle)
            medium.drain([slot], stream.handle)
            client.release_slot(slot)
        stream.synchronize()
        stream.close()
    for i, row in enumerate(taken.cpu()):
        assert row.numpy().tobytes() == LARGE.encode(**sample(LARGE, i)), i


def test_views_are_slots_until_the_last_of_them_is_gone(loader: Loaders) -> None:
    one = loader(
        "every/sample/device", EVERY, zero_copy=True, num_slots=2 * B, request_timeout=0.5, debug=True
    )
    batches = iter(one)
    held = [next(batches), next(batches)]
    first = held[0]["f32"]
    with pytest.raises(SampleTimeout, match="as 2 batches with tensors that are still in use"):
        next(batches)
    check(EVERY, held[0], list(range(B)))
    check(EVERY, held[1], list(range(B, 2 * B)))
    held.clear()
    # The other tensors are gone, this one keeps its block.
    kept = first.clone()
    check(EVERY, next(iter(one)), list(range(2 * B, 3 * B)))
    assert torch.equal(first, kept)


def test_views_outlive_their_client(loader: Loaders) -> None:
    one = loader("every/sample/device", EVERY, zero_copy=True)
    got = next(iter(one))
    one.soft_dataset.close()
    gc.collect()
    check(EVERY, got, list(range(B)))
    del got
    take(one, EVERY, 2, first=1)


def test_switch_of_models(loader: Loaders) -> None:
    """No batch has samples of two products."""
    other = BatchConfig(LARGE.specs)
    for zero_copy in (False, True):
        one = loader("large/batch/device", other, zero_copy=zero_copy)
        batches = iter(one)
        check(LARGE, next(batches), list(range(B)))
        one.set_model("large/sample/host")
        check(LARGE, next(batches), list(range(B)))
        one.set_model("large/batch/device")
        check(LARGE, next(batches), list(range(B, 2 * B)))


def test_what_a_generator_raises_reaches_the_student(cuda_market: CudaMarket, loader: Loaders) -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda _: {"x": torch.zeros(3), "y": torch.tensor(1)}, "Shape mismatch"),
        (lambda _: {"x": torch.zeros(512, 512, dtype=torch.int32), "y": torch.tensor(1)}, "Dtype mismatch"),
        (lambda _: {"x": to_device(torch.zeros(3)), "y": torch.tensor(1)}, "Shape mismatch"),
        (lambda _: {"x": to_device(torch.zeros(512, 512).int()), "y": torch.tensor(1)}, "Dtype mismatch"),
        (lambda _: {"x": torch.zeros(512, 512)}, r"missing=\['y'\]"),
        (lambda _: b"123", "returned 3 bytes"),
        (lambda _: 1 / 0, "ZeroDivisionError"),
    ]
    with Supplier(
        lambda _: b"",
        ["p"],
        cuda_market.endpoints.backend,
        CudaIpcMedium,
        LARGE.nbytes(),
        batch_config=LARGE,
    ) as supplier:
        for function, why in wrong:
            supplier.generator_fn = function
            one = loader("p", LARGE, request_timeout=0.5, endpoint=cuda_market.endpoints.frontend)
            with pytest.raises(GeneratorFailed, match=why):
                first_batch(iter(one))
            one.soft_dataset.close()


def first_batch(batches: Iterator[Any]) -> Any:
    """Return the first batch. A supplier that is slow on a busy machine has not failed yet: the iterator goes on."""
    while True:
        with suppress(SuppliersBusy):
            return next(batches)


def test_what_cannot_be() -> None:
    arguments: Any = ("p", "ipc:///nowhere", EVERY, CudaIpcMedium)
    with pytest.raises(ConfigError, match="num_workers=0"):
        SoftDataLoader(*arguments, num_workers=1, multiprocessing_context="spawn")
    assert SoftDataLoader(*arguments, num_workers=1).num_workers == 1
    with pytest.raises(ConfigError, match="pin_memory"):
        SoftDataLoader(*arguments, pin_memory=True)
    with pytest.raises(ConfigError, match='"x" \\(float32\\) would be unaligned at byte 3'):
        SoftIterableDataset("p", "ipc:///nowhere", CONFIGS["unaligned"], CudaIpcMedium, zero_copy=True)
    coded = BatchConfig([TensorSpec("x", (8,), "float32", codec="cast:float16")])
    with pytest.raises(ConfigError, match="codec"):
        SoftIterableDataset("p", "ipc:///nowhere", coded, CudaIpcMedium)
    with pytest.raises(ConfigError, match="codec"):
        Supplier(lambda _: b"", ["p"], "ipc:///nowhere", CudaIpcMedium, coded.nbytes(), batch_config=coded)
    with pytest.raises(ConfigError, match="device must be from 0"):
        CudaIpcMedium(None, 10, 2, create=True, device=99)
    with pytest.raises(ConfigError, match="address required"):
        CudaIpcMedium(None, 10, 2)
