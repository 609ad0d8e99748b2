"""Dataset, DataLoader and batches, fed by a broker and a supplier in this process."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

Expect = Callable[..., Any]

VALUES = {"a": 1.0, "b": 2.0}


@pytest.fixture
def config(lib: ModuleType) -> Any:
    return lib.make_xy_config((2, 2), "float32", (), "int64")


@pytest.fixture
def served(market: Any, config: Any) -> Any:
    """A broker with a supplier of the products a and b: x and y hold the product's number."""

    def generate(product_id: str) -> bytes:
        value = VALUES[product_id]
        return bytes(config.encode(x=torch.full((2, 2), value), y=torch.tensor(int(value))))

    market.broker()
    market.supplier(generate, ["a", "b"], slot_size=config.nbytes())
    return market


def value_of(sample: dict[str, torch.Tensor]) -> set[float]:
    values = set(sample["x"].flatten().tolist()) | set(sample["y"].flatten().tolist())
    assert len(values) == 1
    return values


def test_dataset(served: Any, config: Any, lib: ModuleType) -> None:
    dataset = lib.SoftIterableDataset("a", served.endpoints.frontend, config, lib.ShmMedium, num_slots=3)
    samples = iter(dataset)
    for _ in range(10):
        sample = next(samples)
        assert sample["x"].shape == (2, 2)
        assert sample["y"].dtype is torch.int64
        assert value_of(sample) == {1}


def test_set_model(served: Any, config: Any, lib: ModuleType) -> None:
    dataset = lib.SoftIterableDataset("a", served.endpoints.frontend, config, lib.ShmMedium, num_slots=4)
    samples = iter(dataset)
    for model in ("a", "b", "a", "b"):
        dataset.set_model(model)
        assert dataset.model_id == model
        for _ in range(5):
            assert value_of(next(samples)) == {VALUES[model]}


def test_no_supplier_serves_the_product(served: Any, config: Any, lib: ModuleType) -> None:
    dataset = lib.SoftIterableDataset(
        "unserved", served.endpoints.frontend, config, lib.ShmMedium, request_timeout=0.2
    )
    with pytest.raises(RuntimeError, match="unserved"):
        next(iter(dataset))


def test_loader_in_this_process(served: Any, config: Any, lib: ModuleType) -> None:
    loader = lib.SoftDataLoader(
        "a", served.endpoints.frontend, config, lib.ShmMedium, num_slots=8, batch_size=4, num_workers=0
    )
    batches = iter(loader)
    assert loader.model_id == "a"
    assert isinstance(loader.soft_dataset, lib.SoftIterableDataset)
    for _ in range(3):
        batch = next(batches)
        assert batch["x"].shape == (4, 2, 2)
        assert value_of(batch) == {1}
    loader.set_model("b")
    assert value_of(next(batches)) == {2}


# Workers that are not forks of this process, which has threads.
def test_loader_with_workers(served: Any, config: Any, lib: ModuleType, expect: Expect) -> None:
    loader = lib.SoftDataLoader(
        model_id="a",
        endpoint=served.endpoints.frontend,
        batch_config=config,
        medium_cls=lib.ShmMedium,
        num_slots=8,
        batch_size=4,
        num_workers=2,
        multiprocessing_context="forkserver",
    )
    batches = iter(loader)
    for _ in range(6):
        batch = next(batches)
        assert batch["x"].shape == (4, 2, 2)
        assert value_of(batch) == {1}
    loader.set_model("b")
    # What the workers have fetched ahead, and the batch that each is at, may still hold a; of softs one worker may be
    # later than the other.
    in_a_row = 0
    for _ in range(200):
        batch = next(batches)
        if set(batch["y"].tolist()) == {2}:
            assert value_of(batch) == {2}
            in_a_row += 1
        else:
            assert in_a_row == 0 or expect(softs=True, softs_fast=False), "the old model came again"
            in_a_row = 0
        if in_a_row == 10:
            break
    assert in_a_row == 10


def test_model_ids_over_256_bytes(config: Any, lib: ModuleType, expect: Expect) -> None:
    def dataset(model_id: str) -> Any:
        return lib.SoftIterableDataset(model_id, "ipc:///unused", config, lib.ShmMedium)

    assert dataset("é" * 128).model_id == "é" * 128
    if expect(softs=True, softs_fast=False):
        assert dataset("é" * 129).model_id == "é" * 128
    else:
        with pytest.raises(ValueError, match="258 bytes"):
            dataset("é" * 129)


def test_collate(served: Any, config: Any, lib: ModuleType, take: Callable[[Any], int]) -> None:
    client = served.client(3, config.nbytes())
    for _ in range(3):
        client.request_slot("a")
        slot = take(client)
    slots = [0, 1, 2]
    assert slot in slots
    collate = lib.make_collate_fn(client, config, auto_release=False)
    assert list(inspect.signature(collate).parameters) == ["slot_ids"]
    batch = collate(slots)
    assert isinstance(batch, lib.Batch)
    assert batch.slot_ids == slots
    assert set(batch.keys()) == {"x", "y"}
    assert "x" in batch
    assert "z" not in batch
    assert batch["x"].shape == (3, 2, 2)
    assert value_of(batch.tensors) == {1}
    assert client.request_slot("unserved") is None
    batch.release()
    batch.release()
    assert all(client.request_slot("unserved") is not None for _ in range(3))
    assert client.request_slot("unserved") is None


def test_collate_releases_at_once(
    served: Any, config: Any, lib: ModuleType, take: Callable[[Any], int]
) -> None:
    client = served.client(1, config.nbytes())
    client.request_slot("b")
    batch = lib.make_collate_fn(client, config)([take(client)])
    assert client.request_slot("b") is not None
    assert value_of(batch.tensors) == {2}
    assert batch["y"].shape == (1,)


def test_a_batch_releases_when_it_is_garbage(lib: ModuleType) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.released: list[int] = []

        def release_slot(self, slot_id: int) -> None:
            self.released.append(slot_id)

    client = Recorder()
    batch = lib.Batch({"x": torch.zeros(1)}, [3, 1], client)
    assert client.released == []
    del batch
    assert client.released == [3, 1]
    lib.Batch({}).release()
