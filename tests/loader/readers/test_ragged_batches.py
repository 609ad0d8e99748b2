"""Ragged tensors from a real supplier through a real broker into batches, over each way that batches take."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ragged_samples import CONFIG, check, loader_of, many, sample
from torch.utils.data import DataLoader, default_collate

from softs_fast import (
    Broker,
    Client,
    EndpointConfig,
    FilesystemMedium,
    ShmMedium,
    SoftIterableDataset,
    StudentClient,
    Supplier,
    TCPMedium,
    Worker,
    make_collate_fn,
)
from softs_fast.loader.readers import batch_memory

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(params=[ShmMedium, TCPMedium, FilesystemMedium])
def medium_cls(request: pytest.FixtureRequest, short_path: Path) -> Any:
    class InFile(FilesystemMedium):
        def __init__(self, address: str | None, **arguments: Any) -> None:
            super().__init__(address or str(short_path / "slots"), **arguments)

    return InFile if request.param is FilesystemMedium else request.param


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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_in_order(endpoint: str, medium_cls: Any, num_workers: int) -> None:
    loader = loader_of(endpoint, medium_cls, num_workers=num_workers)
    seen = [number for batch in itertools.islice(loader, 5) for number in check(batch, 4)]
    assert seen == list(range(20))


@pytest.mark.parametrize("kind", ["batch_generator_fn"])
def test_samples(endpoint: str, medium_cls: Any) -> None:
    data = SoftIterableDataset("m", endpoint, CONFIG, medium_cls, num_slots=4, ordered=True)
    for number, one in enumerate(itertools.islice(data, 6)):
        assert list(one) == CONFIG.tensor_names
        for name, tensor in sample(number).items():
            assert torch.equal(one[name], tensor)


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
