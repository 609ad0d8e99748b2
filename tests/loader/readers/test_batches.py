"""Rows of batches in memory that is used in turn: the same values as ever, and never those of a later batch."""

import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from served import served

import softs_fast
from softs_fast import (
    BatchConfig,
    ConfigError,
    FilesystemMedium,
    ShmMedium,
    SoftDataLoader,
    TensorSpec,
)
from softs_fast.loader.plan import IterationPlan
from softs_fast.loader.readers.copying import RowReader, SampleReader, SampleRows, has_rows

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

N_ROWS = 4
XY = softs_fast.make_xy_config((1024,), "float32", (), "int64")
MIXED = BatchConfig(
    [
        TensorSpec("flag", (3,), "bool"),
        TensorSpec("half", (2, 5), "bfloat16"),
        TensorSpec("none", (0, 2), "float32"),
        TensorSpec("scalar", (), "float64"),
        TensorSpec("odd", (7,), "uint8"),
        *(TensorSpec(f"as_{name}", (2, 1, 3), name) for name in ("float16", "float32", "int8", "int16")),
        *(TensorSpec(f"as_{name}", (1,), name) for name in ("int32", "int64", "float64", "uint8")),
    ]
)


class BytesMedium:
    """A medium of another kind: it can only be read as a whole."""

    def __init__(self, config: BatchConfig) -> None:
        self.slots: dict[int, bytes] = {}

    def write(self, byte_offset: int, data: bytes) -> bool:
        self.slots[byte_offset // len(data)] = data
        return True

    def read(self, slot_id: int) -> bytes:
        return self.slots[slot_id]


@pytest.fixture(params=["shm", "file", "other"])
def kind(request: pytest.FixtureRequest) -> str:
    """What sort of medium the samples are in."""
    return str(request.param)


def open_medium(kind: str, config: BatchConfig, n_slots: int, folder: Any) -> Any:
    if kind == "other":
        return BytesMedium(config)
    cls, address = (ShmMedium, None) if kind == "shm" else (FilesystemMedium, str(folder / "slots"))
    return cls(address=address, slot_size=config.nbytes(), num_slots=n_slots, create=True)


def random_sample(config: BatchConfig, generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        spec.name: torch.randint(0, 100, spec.shape, generator=generator).to(spec.torch_dtype)
        for spec in config.specs
    }


def xy_medium(n_slots: int = 1) -> BytesMedium:
    medium = BytesMedium(XY)
    for i in range(n_slots):
        medium.slots[i] = XY.encode(x=torch.full((1024,), float(i)), y=torch.tensor(i))
    return medium


class Slots:
    """A client that has the numbers that it is given as finished slots."""

    def __init__(self, medium: Any) -> None:
        self.medium = medium
        self.finished: list[int] = []
        self.held: list[int] = []

    def request_sample(self, product_id: str, timeout_ms: int) -> int | None:
        if not self.finished:
            return None
        self.held.append(self.finished.pop(0))
        return self.held[-1]

    def release_slot(self, slot_id: int) -> None:
        self.held.remove(slot_id)


def row_reader(medium: Any, config: BatchConfig = XY, n_held: int = 1) -> RowReader:
    return RowReader(config, Slots(medium), IterationPlan(N_ROWS, n_held=n_held))  # type: ignore[arg-type]


def fill(reader: RowReader, slots: list[int], done: int = 0) -> dict[str, torch.Tensor]:
    """Read slots into the rows from `done` on, which must be the last ones, and take the batch."""
    client: Any = reader._client
    client.finished = list(slots)
    while client.finished:
        done = reader.fill("m", done, 0)
        assert client.held == []
    assert done == N_ROWS
    return reader.take()


def next_batch(reader: RowReader, slot: int = 0) -> dict[str, torch.Tensor]:
    return fill(reader, [slot] * N_ROWS)


def test_the_same_batches_as_by_decoding_and_stacking(kind: str, tmp_path: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    medium = open_medium(kind, MIXED, N_ROWS, tmp_path)
    try:
        rows, samples = row_reader(medium, MIXED), SampleReader(MIXED, medium)
        for _ in range(3):
            sent = [random_sample(MIXED, generator) for _ in range(N_ROWS)]
            encoded = [MIXED.encode(**sample) for sample in sent]
            for slot, data in enumerate(encoded):
                assert medium.write(slot * MIXED.nbytes(), data)
            batch = fill(rows, list(range(N_ROWS)))
            expected = torch.utils.data.default_collate([MIXED.decode(data) for data in encoded])
            assert type(batch) is dict
            assert list(batch) == list(expected)
            for name, tensor in batch.items():
                assert tensor.dtype is expected[name].dtype
                assert tensor.shape == expected[name].shape
                assert torch.equal(tensor, expected[name]), name
                assert tensor.is_contiguous()
                assert tensor.data_ptr() % 64 == 0
                assert tensor.untyped_storage().nbytes() == tensor.nbytes
                tensor.zero_()
            for slot, sample in enumerate(sent):
                samples.read(slot)
                single = samples.take()
                assert type(single) is dict
                assert list(single) == MIXED.tensor_names
                for name, tensor in single.items():
                    assert tensor.dtype is sample[name].dtype
                    assert torch.equal(tensor, sample[name]), name
                    assert tensor.data_ptr() % tensor.element_size() == 0
                    tensor.zero_()
    finally:
        if kind != "other":
            medium.close()
            medium.unlink()


@pytest.mark.parametrize(
    "keep",
    [
        lambda batch: batch["x"],
        lambda batch: batch["x"][1:3, 5],
        lambda batch: batch["x"].numpy(),
        lambda batch: batch["x"].view(torch.uint8)[:, :8].t(),
        lambda batch: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(batch["x"])),
        lambda batch: torch.tensor([]).set_(batch["x"].untyped_storage()),
        lambda batch: memoryview(batch["x"].numpy()),
    ],
    ids=["tensor", "slice", "numpy", "view", "dlpack", "storage", "memoryview"],
)
def test_what_is_kept_is_never_overwritten(keep: Any) -> None:
    reader = row_reader(xy_medium(20))
    kept = []
    for slot in range(20):
        view = keep(next_batch(reader, slot))
        kept.append((view, array_of(view).copy()))
    for view, copy in kept:
        assert np.array_equal(array_of(view), copy)
    assert len({copy.tobytes() for _, copy in kept}) == 20


def array_of(view: Any) -> Any:
    return view.numpy() if isinstance(view, torch.Tensor) else np.asarray(view)


def test_memory_is_used_again_when_its_batch_is_gone() -> None:
    reader = row_reader(xy_medium())
    batch = next_batch(reader)
    addresses = set()
    for _ in range(20):
        batch = next_batch(reader)
        addresses.add((batch["x"].data_ptr(), batch["y"].data_ptr()))
    assert len({x for x, _ in addresses}) == 2, "one batch is in use while the next is filled"
    assert len({y for _, y in addresses}) == 2
    last = batch["x"].data_ptr()
    del batch
    assert next_batch(reader)["x"].data_ptr() == last, "nothing but the batch keeps the memory"


def test_a_kept_tensor_keeps_its_own_memory_only() -> None:
    reader = row_reader(xy_medium())
    labels, images = [], set()
    for _ in range(10):
        batch = next_batch(reader)
        labels.append(batch["y"])
        images.add(batch.pop("x").data_ptr())
        del batch
    assert len(images) == 1
    assert len({label.data_ptr() for label in labels}) == 10


@pytest.mark.parametrize("n_held", [1, 6])
def test_memory_of_the_batches_that_are_held_and_one_more_is_kept_for_later(n_held: int) -> None:
    reader = row_reader(xy_medium(), n_held=n_held)
    many = [next_batch(reader) for _ in range(10)]
    assert [len(field._lent) for field in reader._memory._fields] == [10, 10]
    del many
    assert [len(field._idle) for field in reader._memory._fields] == [n_held + 1] * 2
    assert [len(field._lent) for field in reader._memory._fields] == [0, 0]


def test_memory_outlives_the_reader_and_its_loan() -> None:
    reader = row_reader(xy_medium(4))
    batch = next_batch(reader, 3)
    del reader
    assert batch["x"].eq(3).all()
    assert batch["y"].tolist() == [3] * N_ROWS


def test_batches_dropped_in_several_threads() -> None:
    reader = row_reader(xy_medium(8))
    wrong: list[int] = []
    held: list[dict[str, torch.Tensor]] = []
    done = threading.Event()

    def look_and_drop() -> None:
        while not (done.is_set() and not held):
            try:
                batch = held.pop()
            except IndexError:
                continue
            slot = int(batch["y"][0])
            if not (batch["x"] == slot).all() or not (batch["y"] == slot).all():
                wrong.append(slot)

    threads = [threading.Thread(target=look_and_drop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(2000):
        held.append(next_batch(reader, i % 8))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert [len(field._lent) for field in reader._memory._fields] == [0, 0]


def test_a_row_that_is_read_twice_has_the_later_sample() -> None:
    reader = row_reader(xy_medium(6))
    client: Any = reader._client
    client.finished = [5, 4]
    assert reader.fill("m", 0, 0) == 1
    assert reader.fill("m", 1, 0) == 2
    batch = fill(reader, [0, 1, 2, 3])
    assert batch["y"].tolist() == [0, 1, 2, 3]
    assert batch["x"][:, -1].tolist() == [0, 1, 2, 3]


def test_a_sample_of_another_length_takes_no_row() -> None:
    medium = xy_medium(5)
    reader = row_reader(medium)
    client: Any = reader._client
    client.finished = [0, 4]
    assert reader.fill("m", 0, 0) == 1
    medium.slots[4] = medium.slots[4][1:]
    with pytest.raises(ConfigError, match="Data length 4103 != expected 4104"):
        reader.fill("m", 1, 0)
    assert client.held == []
    assert fill(reader, [1, 2, 3], done=1)["y"].tolist() == [0, 1, 2, 3]


def test_nothing_there_fills_nothing() -> None:
    assert row_reader(xy_medium()).fill("m", 2, 0) == 2


def test_samples_are_taken_one_by_one_and_own_their_memory() -> None:
    medium = xy_medium(4)
    reader = SampleRows(XY, Slots(medium), 3)  # type: ignore[arg-type]
    client: Any = reader._client
    client.finished = [3, 2]
    assert [reader.fill("m", 0, 0), reader.fill("m", 0, 0)] == [1, 1]
    assert reader.fill("m", 1, 0) == 1, "nothing is there"
    client.finished = [0, 1]
    assert [reader.fill("m", 1, 0), reader.fill("m", 2, 0)] == [2, 3]
    assert client.held == []
    rows = reader.take()
    assert [int(row["y"]) for row in rows] == [2, 0, 1], "what was read again has the later sample"
    assert len({row["x"].untyped_storage().data_ptr() for row in rows}) == 3
    client.finished = [0]
    reader.fill("m", 0, 0)
    reader.forget()
    assert reader.take() == []


def test_no_iterator_keeps_what_it_handed_out(endpoint: str) -> None:
    for arguments in ({}, {"collate_fn": torch.utils.data.default_collate}, {"batch_size": None}):
        loader = SoftDataLoader("m", endpoint, XY, ShmMedium, **{"batch_size": 4, **arguments})
        batches = iter(loader)
        known = []
        for _ in range(3):
            batch = next(batches)
            known.append(weakref.ref(batch["x"]))
            del batch
            assert known[-1]() is None


def test_an_overridden_read_is_used() -> None:
    class Inverted(ShmMedium):
        def read(self, slot_id: int) -> bytes:
            return bytes(255 - byte for byte in super().read(slot_id))

    config = BatchConfig([TensorSpec("x", (4,), "uint8")])
    with Inverted(None, slot_size=4, num_slots=1, create=True) as medium:
        medium.write(0, b"\0\1\2\3")
        samples, rows = SampleReader(config, medium), RowReader(config, Slots(medium), IterationPlan(1))  # type: ignore[arg-type]
        samples.read(0)
        assert samples.take()["x"].tolist() == [255, 254, 253, 252]
        rows._client.finished = [0]  # type: ignore[attr-defined]
        assert rows.fill("m", 0, 0) == 1
        assert rows.take()["x"].tolist() == [[255, 254, 253, 252]]
        medium.unlink()


class Halved(BatchConfig):
    """A config that does more than to decode."""

    def decode(self, data: Any) -> dict[str, torch.Tensor]:
        sample = super().decode(data)
        return {**sample, "x": sample["x"] / 2, "extra": torch.ones(1)}


def test_an_overridden_decode_is_used() -> None:
    config = Halved(XY.specs)
    assert has_rows(XY)
    assert not has_rows(config)
    with ShmMedium(None, slot_size=XY.nbytes(), num_slots=1, create=True) as medium:
        medium.write(0, XY.encode(x=torch.full((1024,), 8.0), y=torch.tensor(8)))
        reader = SampleReader(config, medium)
        reader.read(0)
        assert reader.take()["x"].eq(4).all()
        medium.unlink()


def numbered(numbers: "itertools.count[int]", product_id: str) -> bytes:
    number = next(numbers)
    return XY.encode(x=torch.full((1024,), float(number)), y=torch.tensor(number))


@pytest.fixture
def endpoint(frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which a supplier numbers its samples."""
    numbers = itertools.count()
    with served(
        frontend, backend, lambda product_id: numbered(numbers, product_id), ["m"], ShmMedium, XY.nbytes()
    ):
        yield frontend


def check_numbers(batches: list[dict[str, torch.Tensor]], seen: set[int]) -> None:
    """Check that each sample is whole and that none comes twice."""
    for batch in batches:
        assert type(batch) is dict
        assert batch["x"].shape == (len(batch["y"]), 1024)
        assert batch["x"].eq(batch["y"].unsqueeze(1)).all()
        numbers = set(batch["y"].tolist())
        assert len(numbers) == len(batch["y"])
        assert not numbers & seen
        seen |= numbers


@pytest.mark.parametrize("method", [None, "fork", "forkserver"])
def test_batches_that_are_kept(endpoint: str, method: str | None) -> None:
    workers: dict[str, Any] = {
        "num_workers": 2,
        "persistent_workers": True,
        "multiprocessing_context": method,
    }
    options = workers if method else {}
    loader = SoftDataLoader("m", endpoint, XY, ShmMedium, num_slots=4, batch_size=8, **options)
    seen: set[int] = set()
    for _ in range(2):
        kept = list(itertools.islice(loader, 30))
        assert {len(batch["y"]) for batch in kept} == {8}
        check_numbers(kept, seen)
    del loader


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_fn_of_the_user_gets_dicts(endpoint: str, num_workers: int) -> None:
    def collate(samples: list[Any]) -> Any:
        assert all(type(sample) is dict for sample in samples)
        assert len({sample["x"].untyped_storage().data_ptr() for sample in samples}) == len(samples)
        return torch.utils.data.default_collate(samples)

    loader = SoftDataLoader(
        "m",
        endpoint,
        XY,
        ShmMedium,
        batch_size=4,
        collate_fn=collate,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    check_numbers(list(itertools.islice(loader, 5)), set())
    assert loader.collate_fn is collate


def test_the_dataset_of_a_loader_yields_dicts(endpoint: str) -> None:
    loader = SoftDataLoader("m", endpoint, XY, ShmMedium, batch_size=4, collate_fn=None)
    seen: set[int] = set()
    in_batches, one_by_one = iter(loader), iter(loader.soft_dataset)
    other = iter(torch.utils.data.DataLoader(loader.dataset, batch_size=2, collate_fn=loader.collate_fn))
    for _ in range(5):
        sample = next(one_by_one)
        assert type(sample) is dict
        check_numbers([next(in_batches), {name: value[None] for name, value in sample.items()}], seen)
        check_numbers([next(other)], seen)


def test_a_config_that_decodes_otherwise_in_a_loader(endpoint: str) -> None:
    loader = SoftDataLoader("m", endpoint, Halved(XY.specs), ShmMedium, batch_size=2)
    batch = next(iter(loader))
    assert (batch["x"] * 2).eq(batch["y"].unsqueeze(1)).all()
    assert batch["extra"].shape == (2, 1)
