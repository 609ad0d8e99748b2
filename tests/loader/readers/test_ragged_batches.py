"""Ragged tensors from a real supplier through a real broker into batches, over each way that batches take."""

import itertools
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from softs_fast import (
    BatchConfig,
    Broker,
    Client,
    ConfigError,
    EndpointConfig,
    FilesystemMedium,
    GeneratorFailed,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    StudentClient,
    Supplier,
    TCPMedium,
    TensorSpec,
    WireError,
    Worker,
    make_collate_fn,
)
from softs_fast.loader.readers import batch_memory, pinning
from softs_fast.tensors import RaggedTensor

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("ids", (600,), "int32", ragged=True),
        TensorSpec("hidden", (40,), "float32", codec="cast:bfloat16"),
        TensorSpec("states", (90, 4), "bfloat16", ragged=True),
        TensorSpec("x", (2, 5), "float16"),
    ]
)
TEXTS = BatchConfig([TensorSpec("ids", (2048,), "int32", ragged=True), TensorSpec("y", (), "int64")])


def sample(number: int) -> dict[str, torch.Tensor]:
    chosen = random.Random(number)
    return {
        "y": torch.tensor(number),
        "ids": torch.full((chosen.choice([0, 600, chosen.randint(1, 599)]),), number, dtype=torch.int32),
        "hidden": torch.full((40,), float(number)).bfloat16().float(),
        "states": torch.full((chosen.choice([0, 90, chosen.randint(1, 89)]), 4), float(number)).bfloat16(),
        "x": torch.full((2, 5), number % 1000).half(),
    }


def many(numbers: list[int]) -> dict[str, Any]:
    """A batch as a function makes it: its ragged tensors in two of the forms that they may have."""
    samples = [sample(number) for number in numbers]
    batch: dict[str, Any] = {name: [each[name] for each in samples] for name in CONFIG.tensor_names}
    fixed = {name: torch.stack(batch[name]) for name in ("y", "hidden", "x")}
    return {**batch, **fixed, "states": RaggedTensor.from_samples(batch["states"])}


def check(batch: dict[str, Any], n_rows: int) -> list[int]:
    """A batch is what was sent; return the numbers of its samples."""
    assert list(batch) == CONFIG.tensor_names
    numbers: list[int] = batch["y"].tolist()
    assert len(numbers) == n_rows
    wanted = [sample(number) for number in numbers]
    for name in ("ids", "states"):
        ragged = batch[name]
        assert isinstance(ragged, RaggedTensor)
        assert ragged.values.dtype is CONFIG.get_spec(name).torch_dtype
        assert ragged.lengths.tolist() == [len(each[name]) for each in wanted]
        assert ragged.values.untyped_storage().nbytes() == ragged.values.nbytes
        for row, each in zip(ragged.unbind(), wanted, strict=True):
            assert torch.equal(row, each[name])
    for name in ("hidden", "x"):
        assert torch.equal(batch[name], torch.stack([each[name] for each in wanted]))
    return numbers


@pytest.fixture(params=[ShmMedium, TCPMedium, FilesystemMedium])
def medium_cls(request: pytest.FixtureRequest, short_path: Path) -> Any:
    class InFile(FilesystemMedium):
        def __init__(self, address: str | None, **arguments: Any) -> None:
            super().__init__(address or str(short_path / "slots"), **arguments)

    return InFile if request.param is FilesystemMedium else request.param


def base_of(medium_cls: Any) -> Any:
    """The class of a supplier's medium."""
    return FilesystemMedium if issubclass(medium_cls, FilesystemMedium) else medium_cls


@pytest.fixture(params=["generator_fn", "batch_generator_fn", "bytes"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def endpoint(kind: str, medium_cls: Any, frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which a supplier makes the sample of each number of the stream."""

    def function(product_id: str, sequence: int) -> Any:
        return sample(sequence)

    def batch_function(product_id: str, n: int, sequences: tuple[int, ...]) -> Any:
        if kind == "bytes":
            return [CONFIG.encode(**sample(number)) for number in sequences]
        return many(list(sequences))

    functions: dict[str, Any] = (
        {"generator_fn": function}
        if kind == "generator_fn"
        else {"batch_generator_fn": batch_function, "max_batch": 3}
    )
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(
            product_ids=["m"], endpoint=backend, medium_cls=medium_cls, batch_config=CONFIG, **functions
        ),
    ):
        yield frontend


def loader_of(endpoint: str, medium_cls: Any = ShmMedium, **options: Any) -> SoftDataLoader:
    options = {"num_slots": 8, "batch_size": 4, "ordered": True, **options}
    return SoftDataLoader("m", endpoint, CONFIG, medium_cls, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_in_order(endpoint: str, medium_cls: Any, num_workers: int) -> None:
    loader = loader_of(endpoint, medium_cls, num_workers=num_workers)
    seen = [number for batch in itertools.islice(loader, 5) for number in check(batch, 4)]
    assert seen == list(range(20))
    loader.soft_dataset.close()


@pytest.mark.parametrize("kind", ["batch_generator_fn"])
def test_samples(endpoint: str, medium_cls: Any) -> None:
    data = SoftIterableDataset("m", endpoint, CONFIG, medium_cls, num_slots=4, ordered=True)
    for number, one in enumerate(itertools.islice(data, 6)):
        assert list(one) == CONFIG.tensor_names
        for name, tensor in sample(number).items():
            assert torch.equal(one[name], tensor)
    data.close()


@pytest.mark.parametrize("medium_cls", [ShmMedium])
@pytest.mark.parametrize("kind", ["batch_generator_fn"])
class TestShm:
    """Ways that do not depend on medium and function."""

    def test_batches_of_many_chunks(self, endpoint: str) -> None:
        # Slots of 3 KiB: 400 rows are taken in two steps, and by two threads.
        loader = loader_of(endpoint, num_slots=64, batch_size=400, num_workers=2)
        seen = [number for batch in itertools.islice(loader, 3) for number in check(batch, 400)]
        assert seen == list(range(1200))
        loader.soft_dataset.close()

    def test_resume(self, endpoint: str) -> None:
        loader = loader_of(endpoint, num_workers=1)
        for _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
        loader.soft_dataset.close()
        later = loader_of(endpoint, batch_size=6)
        later.load_state_dict(state)
        assert check(next(iter(later)), 6) == list(range(12, 18))
        later.soft_dataset.close()

    @pytest.mark.parametrize("collate_fn", [None, CONFIG.collate])
    def test_worker_processes(self, endpoint: str, collate_fn: Any) -> None:
        loader = loader_of(endpoint, num_workers=2, multiprocessing_context="fork", collate_fn=collate_fn)
        batches = iter(loader)
        seen = [number for batch in itertools.islice(batches, 4) for number in check(batch, 4)]
        assert seen == list(range(16))
        del batches

    def test_a_loader_of_torch(self, endpoint: str) -> None:
        data = SoftIterableDataset("m", endpoint, CONFIG, ShmMedium, num_slots=8, ordered=True)
        batches = iter(DataLoader(data, batch_size=4, collate_fn=CONFIG.collate))
        assert check(next(batches), 4) == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="equal size"):
            default_collate([sample(1), sample(2)])
        data.close()

    def test_a_batch_keeps_its_memory(self, endpoint: str) -> None:
        loader = loader_of(endpoint)
        kept = list(itertools.islice(loader, 8))
        assert [number for batch in kept for number in check(batch, 4)] == list(range(32))
        values = [batch["ids"].values.numpy() for batch in kept]
        del kept
        for _ in itertools.islice(loader, 8):
            pass
        assert [set(each.tolist()) for each in values] == [
            {number for number in range(first, first + 4) if len(sample(number)["ids"])}
            for first in range(0, 32, 4)
        ]
        loader.soft_dataset.close()

    def test_pinned(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pinned = []

        def note(self: torch.Tensor, device: object = None) -> torch.Tensor:
            pinned.append(self.nbytes)
            return self.clone()

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.Tensor, "pin_memory", note)
        monkeypatch.setattr(pinning, "empty_pinned", torch.empty)
        monkeypatch.setattr(
            batch_memory, "empty_pinned", lambda shape, dtype: torch.empty(shape, dtype=dtype)
        )
        loader = loader_of(endpoint, pin_memory=True)
        batch = next(iter(loader))
        assert check(batch, 4) == [0, 1, 2, 3]
        assert pinned == [tensor.nbytes for name in ("ids", "states") for tensor in batch[name]]
        loader.soft_dataset.close()

    def test_finished_slots_that_were_taken_by_hand(self, endpoint: str) -> None:
        with Client(endpoint, ShmMedium, CONFIG.nbytes(), 8, ordered=True) as client:
            taken = [client.request_sample("m", 10_000) for _ in range(4)]
            batch = make_collate_fn(client, CONFIG)(taken)  # type: ignore[arg-type]
            assert check(batch.tensors, 4) == [0, 1, 2, 3]


def test_a_student_and_its_workers(short_path: Path) -> None:
    paths = [f"ipc://{short_path}/{name}" for name in ("f", "b", "c", "p")]

    def generate(model_id: str, model_cfg: Any, sequence: int) -> Any:
        return sample(int(model_id) + sequence)

    worker = Worker(
        generator_fn=generate, backend_endpoint=paths[1], control_pub_endpoint=paths[3], batch_config=CONFIG
    )
    student = StudentClient(0, 4, CONFIG, paths[0], paths[2], paths[3], ordered=True)
    with Broker(*paths), worker, student as client:
        client.hello()
        for first in (10, 300):
            client.set_model(str(first))
            for number in range(first, first + 5):
                ref = client.request_sample(10_000)
                assert ref is not None
                for decoded in (
                    ref.tensors(),
                    client.decode_slot(ref.slot_id),
                    CONFIG.decode(client.read_slot(ref.slot_id)),
                ):
                    for name, tensor in sample(number).items():
                        assert torch.equal(decoded[name], tensor)
                client.release_slot(ref.slot_id)


def texts(lengths: list[int]) -> list[bytes]:
    """Samples without a byte of poison."""
    return [
        TEXTS.encode(ids=torch.full((length,), 1, dtype=torch.int32), y=torch.tensor(1)) for length in lengths
    ]


LENGTHS = np.random.default_rng(1).integers(150, 500, 16).tolist()


@pytest.mark.parametrize("form", ["list", "bytes"])
@pytest.mark.parametrize("medium_cls", [ShmMedium, FilesystemMedium], indirect=True)
def test_bytes_written_to_and_read_from_slots_are_those_of_the_tokens(
    medium_cls: Any, form: str, frontend: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison = 0xEE

    def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> Any:
        lengths = [LENGTHS[i % 16] for i in sequences]
        if form == "bytes":
            return texts(lengths)
        return {"ids": [np.ones(length, np.int32) for length in lengths], "y": np.ones(n, np.int64)}

    aligned = batch_memory._aligned
    blocks = []

    def poisoned(n_bytes: int) -> Any:
        blocks.append(aligned(n_bytes))
        blocks[-1][:] = poison
        return blocks[-1]

    monkeypatch.setattr(batch_memory, "_aligned", poisoned)
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(
            batch_generator_fn=generate,
            product_ids=["m"],
            endpoint=backend,
            medium_cls=base_of(medium_cls),
            batch_config=TEXTS,
        ),
        Client(frontend, medium_cls, TEXTS.nbytes(), 16, ordered=True) as client,
    ):
        size, stride = TEXTS.nbytes(), client.medium.slot_stride  # type: ignore[attr-defined]
        for slot in range(16):
            assert client.medium.write(slot * stride, bytes([poison]) * size)
        taken = [client.request_sample("m", 10_000) for _ in range(16)]
        slots = [np.frombuffer(client.medium.read(slot), np.uint8) for slot in taken if slot is not None]
        n_written = sum(int((slot != poison).sum()) for slot in slots)
        assert 4 * sum(LENGTHS) <= n_written <= 1.05 * 4 * sum(LENGTHS)
        for slot in taken:
            assert slot is not None
            client.release_slot(slot)
        memory = batch_memory.BatchMemory(TEXTS, 16, False)
        assert client.gather("m", 16, 0, memory.lend(), 10_000) == 16
        n_read = sum(int((block != poison).sum()) for block in blocks) + 8 * 16
        batch = memory.take()
        assert batch["ids"].lengths.tolist() == LENGTHS
        assert 4 * sum(LENGTHS) <= n_read <= 1.05 * 4 * sum(LENGTHS)


def test_bytes_sent_through_tcp_are_those_of_the_tokens(
    frontend: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_sent, n_read = [], []
    write, read = TCPMedium.write_prepared, TCPMedium.read_head

    def count_sent(self: TCPMedium, offset: int, data: Any, order: int = 0) -> bool:
        n_sent.append(len(data))
        return write(self, offset, data, order)

    def count_read(self: TCPMedium, slot_id: int, n_bytes: int) -> bytes:
        n_read.append(n_bytes)
        return read(self, slot_id, n_bytes)

    monkeypatch.setattr(TCPMedium, "write_prepared", count_sent)
    monkeypatch.setattr(TCPMedium, "read_head", count_read)

    def generate(product_id: str, sequence: int) -> Any:
        return {"ids": np.ones(LENGTHS[sequence % 16], np.int32), "y": 1}

    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(generate, ["m"], backend, TCPMedium, batch_config=TEXTS),
    ):
        loader = SoftDataLoader("m", frontend, TEXTS, TCPMedium, num_slots=16, batch_size=16, ordered=True)
        assert next(iter(loader))["ids"].lengths.tolist() == LENGTHS
        assert 4 * sum(LENGTHS) <= sum(n_sent[:16]) <= 1.05 * 4 * sum(LENGTHS)
        assert 4 * sum(LENGTHS) <= sum(n_read[:32]) <= 1.05 * 4 * sum(LENGTHS)
        loader.soft_dataset.close()


@pytest.mark.parametrize("medium_cls", [ShmMedium, TCPMedium])
@pytest.mark.parametrize(("batch_size", "num_workers"), [(2, 0), (2, 2), (None, 0)])
@pytest.mark.parametrize("length", [601, -1, 2**62])
def test_a_length_that_no_sample_has(
    medium_cls: Any, batch_size: int | None, num_workers: int, length: int, frontend: str, backend: str
) -> None:
    good = CONFIG.encode(**sample(1)).ljust(CONFIG.nbytes(), b"\0")
    bad = struct.pack("=q", length) + good[8:]
    supply = itertools.chain([good, good, bad], itertools.repeat(good))
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(lambda product_id: next(supply), ["m"], backend, medium_cls, CONFIG.nbytes()),
    ):
        loader = SoftDataLoader(
            "m", frontend, CONFIG, medium_cls, num_slots=4, batch_size=batch_size, num_workers=num_workers
        )
        batches = iter(loader)
        for _ in range(2 if batch_size is None else 1):
            next(batches)
        with pytest.raises(WireError, match=f'tensor "ids" has length {length}, need 0 to 600'):
            next(batches)
        # Its slot has been released, and all others too.
        for batch in itertools.islice(batches, 6):
            assert torch.as_tensor(batch["y"]).flatten().unique().tolist() == [1]
        loader.soft_dataset.close()


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_ordered_stream_goes_on_behind_a_bad_sample(num_workers: int, frontend: str, backend: str) -> None:
    bad = {9, 10, 30}

    def generate(product_id: str, sequence: int) -> bytes:
        data = CONFIG.encode(**sample(sequence)).ljust(CONFIG.nbytes(), b"\0")
        if sequence in bad:
            bad.remove(sequence)
            return struct.pack("=q", -1) + data[8:]
        return data

    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(generate, ["m"], backend, ShmMedium, CONFIG.nbytes()),
    ):
        loader = loader_of(frontend, num_workers=num_workers)
        batches = iter(loader)
        seen: list[int] = []
        n_refused = 0
        while len(seen) < 48:
            try:
                seen += check(next(batches), 4)
            except WireError:
                n_refused += 1
        assert seen == list(range(48))
        assert 1 <= n_refused <= 3
        loader.soft_dataset.close()


def test_slots_of_any_bytes(frontend: str, backend: str) -> None:
    chosen = random.Random(7)

    def generate(product_id: str) -> bytes:
        lengths = [
            chosen.choice([chosen.randint(-2, most + 2), chosen.getrandbits(64) - 2**63])
            for most in (600, 90)
        ]
        return struct.pack("=qq", *lengths) + chosen.randbytes(CONFIG.nbytes() - 16)

    n_batches, n_refused = 0, 0
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(generate, ["m"], backend, ShmMedium, CONFIG.nbytes()),
    ):
        batches = iter(SoftDataLoader("m", frontend, CONFIG, ShmMedium, num_slots=8, batch_size=2))
        while min(n_batches, n_refused) < 20:
            try:
                batch = next(batches)
            except WireError:
                n_refused += 1
                continue
            n_batches += 1
            for name in ("ids", "states"):
                lengths = batch[name].lengths
                assert lengths.min() >= 0
                assert lengths.max() <= CONFIG.get_spec(name).shape[0]
                assert len(batch[name].values) == lengths.sum()
        del batches


def test_what_a_function_may_not_return(frontend: str, backend: str) -> None:
    good = many([1])
    for bad, text in (
        (
            {**good, "ids": [torch.zeros(601, dtype=torch.int32)]},
            'tensor "ids" has length 601, need 0 to 600',
        ),
        ([struct.pack("=qq", 700, 1)], 'returned 16 bytes that are no sample: tensor "ids" has length 700'),
        ([CONFIG.encode(**sample(5))[:-1]], "ends after"),
        (
            CONFIG.encode(**sample(5)),
            "returned bytes, need a mapping of tensors, or a list of 1 byte strings",
        ),
        ([], "returned 0 samples, need 1"),
    ):
        with (
            Broker(EndpointConfig(frontend, backend)),
            Supplier(
                batch_generator_fn=lambda product_id, n, bad=bad: bad,
                product_ids=["m"],
                endpoint=backend,
                batch_config=CONFIG,
                max_batch=1,
            ),
        ):
            data = SoftIterableDataset("m", frontend, CONFIG, ShmMedium, num_slots=1, request_timeout=0.2)
            with pytest.raises(GeneratorFailed, match=text):
                next(iter(data))
            data.close()


def test_a_supplier_without_the_config_needs_whole_slots(frontend: str, backend: str) -> None:
    short = CONFIG.encode(**sample(5))
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(lambda product_id: short, ["m"], backend, ShmMedium, CONFIG.nbytes()),
    ):
        data = SoftIterableDataset("m", frontend, CONFIG, ShmMedium, num_slots=1, request_timeout=0.2)
        with pytest.raises(
            GeneratorFailed, match=f"returned {len(short)} bytes, need slot_size={CONFIG.nbytes()}"
        ):
            next(iter(data))
        data.close()


def test_memory_for_ragged_tensors_must_fit() -> None:
    with Client("ipc:///nowhere", ShmMedium, CONFIG.nbytes(), 2) as client:
        memory = batch_memory.BatchMemory(CONFIG, 3, False)
        *fixed, (layout, offsets, values) = memory.lend()
        for ragged in (
            (layout, offsets[:, :-1].copy(), values),
            (layout, offsets, values[:1]),
            (layout, offsets, [values[0][:-1], values[1]]),
        ):
            with pytest.raises(
                ConfigError, match="the memory for tensors of varying length is not that of 3 rows"
            ):
                client.gather("m", 3, 0, [*fixed, ragged], 0)
