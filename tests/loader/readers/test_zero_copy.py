"""Batches that lie on the slots: what they hold, when a slot is released, and what happens when none is."""

import copy
import gc
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from served import served

from softs_fast import (
    BatchConfig,
    Broker,
    ConfigError,
    EndpointConfig,
    FilesystemMedium,
    NoSupplier,
    SampleTimeout,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    Supplier,
    SuppliersBusy,
    TCPMedium,
    TensorSpec,
)

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

B = 4
# 8 + 1024 * 4 + 6 * 2 + 2 * 1 + 3 * 1 + 3 bytes
CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("x", (32, 32), "float32"),
        TensorSpec("half", (2, 3), "bfloat16"),
        TensorSpec("none", (0, 5), "float64"),
        TensorSpec("flag", (2,), "bool"),
        TensorSpec("tiny", (3,), "float8_e4m3fn"),
        TensorSpec("rest", (7,), "uint8"),
    ]
)


def sample(number: int) -> dict[str, torch.Tensor]:
    return {
        "y": torch.tensor(number),
        "x": torch.full((32, 32), float(number)),
        "half": torch.arange(6).reshape(2, 3).to(torch.bfloat16) + number % 8,
        "none": torch.empty((0, 5), dtype=torch.float64),
        "flag": torch.tensor([number % 2 == 0, number % 3 == 0]),
        "tiny": torch.tensor([0.5, 1.0, number % 4]).to(torch.float8_e4m3fn),
        "rest": torch.full((7,), number % 251, dtype=torch.uint8),
    }


@pytest.fixture
def endpoint(frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which a supplier for each kind of medium numbers its samples."""
    numbers = itertools.count()

    def generate(product_id: str) -> bytes:
        return CONFIG.encode(**sample(next(numbers)))

    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(generate, ["m"], backend, ShmMedium, CONFIG.nbytes()),
        Supplier(generate, ["m"], backend, FilesystemMedium, CONFIG.nbytes()),
    ):
        yield frontend


@pytest.fixture
def new(endpoint: str) -> Iterator[Callable[..., SoftDataLoader]]:
    """Make loaders, which are closed in the end."""
    made: list[SoftDataLoader] = []

    def make(medium_cls: Any = ShmMedium, **arguments: Any) -> SoftDataLoader:
        arguments = {"num_slots": 4 * B, "batch_size": B, "zero_copy": True, **arguments}
        made.append(SoftDataLoader("m", endpoint, CONFIG, medium_cls, **arguments))
        return made[-1]

    yield make
    for loader in made:
        loader.soft_dataset.close()


def check(batch: dict[str, torch.Tensor]) -> list[int]:
    """Check that all samples of a batch are whole, and return their numbers."""
    numbers: list[int] = batch["y"].tolist()
    assert list(batch) == CONFIG.tensor_names
    for i, number in enumerate(numbers):
        for name, expected in sample(number).items():
            tensor = batch[name][i]
            assert tensor.dtype is expected.dtype
            assert tensor.shape == expected.shape
            assert tensor.float().equal(expected.float()), name
    return numbers


def n_held(loader: SoftDataLoader) -> int:
    assert loader.soft_dataset._open is not None
    return loader.soft_dataset._open.client.n_blocks_held


@pytest.mark.parametrize("in_file", [False, True])
def test_batches_lie_on_the_slots(new: Callable[..., SoftDataLoader], in_file: bool, tmp_path: Any) -> None:
    class Here(FilesystemMedium):
        def __init__(self, address: str | None, **arguments: Any) -> None:
            super().__init__(address or str(tmp_path / "slots"), **arguments)

    loader = new(Here if in_file else ShmMedium)
    batches = iter(loader)
    seen: set[int] = set()
    places = set()
    for _ in range(20):
        batch = next(batches)
        numbers = check(batch)
        assert not seen & set(numbers)
        seen |= set(numbers)
        first = batch["y"].data_ptr()
        for name, tensor in batch.items():
            assert tensor.shape[0] == B
            if tensor.numel():
                assert tensor.data_ptr() == first + CONFIG.get_offset(name)
                # A class of the user's own gets slots that lie close, as softs gives it.
                stride = CONFIG.nbytes() if in_file else -(-CONFIG.nbytes() // 64) * 64
                assert tensor.stride(0) * tensor.element_size() == stride
        places.add(batch["y"].data_ptr())
    assert len(places) <= 4
    del batch, tensor
    assert n_held(loader) == 0


@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch["x"],
        lambda batch: batch["flag"][1:, 0],
        lambda batch: batch["x"].numpy(),
        lambda batch: batch["half"].view(torch.int16)[2:3].t,
        lambda batch: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(batch["x"])),
        lambda batch: torch.tensor([]).set_(batch["x"].untyped_storage()),
        lambda batch: memoryview(batch["rest"].numpy()),
        lambda batch: iter(batch["x"]),
        lambda batch: batch["x"].clone().requires_grad_().mul(batch["x"]).sum(),
    ],
    ids=["tensor", "slice", "numpy", "method", "dlpack", "storage", "memoryview", "iterator", "graph"],
)
def test_whatever_is_kept_keeps_its_block(new: Callable[..., SoftDataLoader], keep: Any) -> None:
    loader = new()
    batches = iter(loader)
    batch = next(batches)
    known, numbers = batch["x"].data_ptr(), check(batch)
    kept = keep(batch)
    del batch
    assert n_held(loader) == 1
    for _ in range(12):
        batch = next(batches)
        assert batch["x"].data_ptr() != known
        assert not set(check(batch)) & set(numbers)
        del batch
    del kept
    gc.collect()
    assert n_held(loader) == 0


def test_batches_are_copied_and_saved_like_others(new: Callable[..., SoftDataLoader]) -> None:
    loader = new()
    batch = next(iter(loader))
    numbers = check(batch)
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    copies = [torch.load(file), copy.deepcopy(batch)]
    del batch
    gc.collect()  # torch.save of torch 2.6 leaves a reference cycle with what it has saved
    assert n_held(loader) == 0
    for same in copies:
        assert check(same) == numbers


def test_blocks_come_back_from_other_threads(new: Callable[..., SoftDataLoader]) -> None:
    loader = new(request_timeout=None)
    held: list[Any] = []
    wrong: list[Any] = []
    done = threading.Event()

    def look_and_drop() -> None:
        while not (done.is_set() and not held):
            try:
                tensor = held.pop()
            except IndexError:
                done.wait(0.001)
                continue
            if not tensor[:, 0, 0].eq(tensor[:, 31, 31]).all():
                wrong.append(tensor)
            del tensor

    threads = [threading.Thread(target=look_and_drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    seen: set[int] = set()
    for batch in itertools.islice(loader, 200):
        seen |= set(batch["y"].tolist())
        held.append(batch["x"])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(seen) == 200 * B


@pytest.mark.parametrize("request_timeout", [0.05, 0.3])
def test_a_user_that_holds_all_blocks_is_told(
    new: Callable[..., SoftDataLoader], request_timeout: float
) -> None:
    loader = new(request_timeout=request_timeout, num_slots=3 * B + 1)
    batches, kept = iter(loader), []
    while len(kept) < 3:
        with suppress(SuppliersBusy, NoSupplier):
            kept.append(next(batches))
    with pytest.raises(
        SampleTimeout, match="all 12 slots are held, as 3 batches with tensors that are still in use"
    ):
        next(batches)
    assert sorted(itertools.chain(*map(check, kept))) == sorted(set(itertools.chain(*map(check, kept))))
    kept.pop()
    while len(kept) < 3:
        with suppress(SuppliersBusy):
            kept.append(next(batches))
    check(kept[-1])


def test_garbage_in_cycles_is_collected_before_giving_up(new: Callable[..., SoftDataLoader]) -> None:
    loader = new(num_slots=2 * B, request_timeout=None)
    gc.disable()
    try:
        for batch in itertools.islice(loader, 10):
            batch["itself"] = batch
            del batch
    finally:
        gc.enable()
    gc.collect()
    assert n_held(loader) == 0


def test_tensors_outlive_the_client(new: Callable[..., SoftDataLoader]) -> None:
    loader = new()
    batch = next(iter(loader))
    numbers = batch["y"].tolist()
    loader.soft_dataset.close()
    assert check(batch) == numbers
    batch["x"].zero_()


def test_debug_overwrites_what_came_back(frontend: str, backend: str) -> None:
    go_on = threading.Event()
    numbers = itertools.count()

    def two_batches(product_id: str) -> bytes:
        number = next(numbers)
        if number >= 2 * B:
            go_on.wait()
        return CONFIG.encode(**sample(number))

    data = SoftDataLoader("m", frontend, CONFIG, ShmMedium, 2 * B, batch_size=B, zero_copy=True, debug=True)
    with served(frontend, backend, two_batches, ["m"], ShmMedium, CONFIG.nbytes()):
        batches = iter(data)
        batch, other = next(batches), next(batches)
        assert data.soft_dataset._open is not None
        client = data.soft_dataset._open.client
        slot = (batch["y"].data_ptr() > other["y"].data_ptr()) * B
        assert client.medium.read(slot)[:8] == batch["y"][:1].numpy().tobytes()
        del batch
        for i in range(B):
            assert client.medium.read(slot + i) == b"\xff" * CONFIG.nbytes()
        check(other)
        go_on.set()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_batches_of_workers(new: Callable[..., SoftDataLoader], method: str) -> None:
    loader = new(num_workers=2, multiprocessing_context=method, num_slots=2 * B)
    seen: set[int] = set()
    kept = list(itertools.islice(loader, 20))
    for batch in kept:
        assert not seen & set(check(batch))
        seen |= set(batch["y"].tolist())


def test_samples_and_batches_of_the_user(new: Callable[..., SoftDataLoader], endpoint: str) -> None:
    single = new(batch_size=None)
    for one in itertools.islice(single, 10):
        check({name: tensor[None] for name, tensor in one.items()})
    one.clear()

    def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        assert len({tensors["y"].untyped_storage().data_ptr() for tensors in samples}) == 1
        return {name: torch.stack([tensors[name] for tensors in samples]) for name in samples[0]}

    for batch in itertools.islice(new(collate_fn=collate), 10):
        check(batch)
    data = SoftIterableDataset("m", endpoint, CONFIG, ShmMedium, zero_copy=True)
    for batch in itertools.islice(torch.utils.data.DataLoader(data, batch_size=3), 10):
        check(batch)


def arguments_of(config: BatchConfig, medium_cls: Any = ShmMedium) -> tuple[Any, ...]:
    return ("m", "ipc:///unused", config, medium_cls)


def test_too_few_slots() -> None:
    with pytest.raises(ConfigError, match="num_slots must be at least 64 with batches of 32, got 63"):
        SoftDataLoader(*arguments_of(CONFIG), num_slots=63, batch_size=32, zero_copy=True)
    with pytest.raises(ConfigError, match="num_slots must be at least 2 with batches of 1, got 1"):
        SoftIterableDataset(*arguments_of(CONFIG), num_slots=1, zero_copy=True)
    SoftDataLoader(*arguments_of(CONFIG), num_slots=63, batch_size=32)


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ([("a", (1,), "uint8"), ("b", (3,), "float32"), ("c", (3,), "uint8")], 'tensor "b" .* at byte 1 of'),
        ([("a", (1,), "int64"), ("b", (3,), "int8")], r'tensor "a" .* 11 bytes; .* uint8 \[5\]'),
        ([("a", (1,), "int64"), ("b", (1,), "int32")], r'tensor "a" .* uint8 \[4\]'),
        ([("a", (2,), "bfloat16"), ("b", (3,), "uint8")], 'tensor "a"'),
    ],
)
def test_tensors_that_would_be_unaligned(specs: list[Any], text: str) -> None:
    config = BatchConfig([TensorSpec(*spec) for spec in specs])
    with pytest.raises(ConfigError, match=text):
        SoftIterableDataset(*arguments_of(config), zero_copy=True)
    SoftIterableDataset(*arguments_of(config))


def test_mediums_and_configs_without_views() -> None:
    class Decrypting(ShmMedium):
        def read(self, slot_id: int) -> bytes:
            return super().read(slot_id)[::-1]

    class Halved(BatchConfig):
        def decode(self, data: Any) -> dict[str, torch.Tensor]:
            return super().decode(data)

    for medium_cls in (TCPMedium, Decrypting):
        with pytest.raises(ConfigError, match="zero_copy needs slots that can be mapped"):
            SoftIterableDataset(*arguments_of(CONFIG, medium_cls), zero_copy=True)
    with pytest.raises(ConfigError, match=r"Halved\.decode makes something else of it"):
        SoftIterableDataset(*arguments_of(Halved(CONFIG.specs)), zero_copy=True)


def test_gathered_batches_are_the_same(new: Callable[..., SoftDataLoader]) -> None:
    loader = new(zero_copy=False, num_slots=3)
    seen: set[int] = set()
    for batch in itertools.islice(loader, 20):
        assert not seen & set(check(batch))
        seen |= set(batch["y"].tolist())
        assert all(tensor.is_contiguous() for tensor in batch.values())
        assert all(tensor.data_ptr() % 64 == 0 for tensor in batch.values() if tensor.numel())


def test_writes_of_the_user_stay_in_his_block(new: Callable[..., SoftDataLoader]) -> None:
    batches = iter(new())
    batch, other = next(batches), next(batches)
    for tensor in batch.values():
        tensor.zero_()
    check(other)
    assert np.count_nonzero(batch["x"].numpy()) == 0
