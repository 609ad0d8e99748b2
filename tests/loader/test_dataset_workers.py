"""Datasets in real DataLoader workers: each has its own client, and leaves nothing when it ends."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from served import served

import softs_fast
from softs_fast import ShmMedium, SoftDataLoader, SoftIterableDataset

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def generate(product_id: str) -> bytes:
    return CONFIG.encode(x=torch.full((8,), float(product_id)), y=torch.tensor(int(product_id)))


@pytest.fixture
def endpoint(frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which a supplier makes the products 0 to 9."""
    with served(frontend, backend, generate, [r"\d"], ShmMedium, CONFIG.nbytes()):
        yield frontend


def test_forked_workers_do_not_touch_the_client_of_their_parent(endpoint: str) -> None:
    data = SoftIterableDataset("3", endpoint, CONFIG, ShmMedium, num_slots=4)
    here = iter(data)
    assert next(here)["y"] == 3
    assert data._open is not None
    client = data._open.client
    segment = Path("/dev/shm", client.medium.address)
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        batches = iter(loader)
        for _ in range(5):
            assert next(batches)["y"].tolist() == [3, 3]
        del batches
    assert segment.exists()
    assert data._open.client is client
    for _ in range(10):
        assert next(here)["x"].tolist() == [3.0] * 8
    data.close()
    assert not segment.exists()


def test_forked_workers_count_no_numbers_of_the_client_of_their_parent(endpoint: str) -> None:
    loader = SoftDataLoader(
        "3",
        endpoint,
        CONFIG,
        ShmMedium,
        num_slots=4,
        batch_size=2,
        num_workers=2,
        multiprocessing_context="fork",
    )
    assert next(iter(loader.soft_dataset))["y"] == 3
    assert next(iter(loader))["y"].tolist() == [3, 3]
    loader.soft_dataset.close()


def test_a_cause_found_in_a_worker_reaches_the_trainer(endpoint: str) -> None:
    loader = SoftDataLoader(
        "unserved",
        endpoint,
        CONFIG,
        ShmMedium,
        request_timeout=0.2,
        num_workers=1,
        multiprocessing_context="fork",
    )
    with pytest.raises(softs_fast.NoSupplier, match="no supplier for it at"):
        next(iter(loader))


def twice(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A user's own collate_fn."""
    batch: dict[str, torch.Tensor] = torch.utils.data.default_collate(samples)
    return {**batch, "double": batch["y"] * 2}


@pytest.mark.parametrize(
    ("method", "zero_copy", "collate_fn"),
    [
        *itertools.product(("fork",), (False, True), (None, twice)),
        *itertools.product((None,), (False, True), (None, twice)),
        *itertools.product(("forkserver",), (False, True), (None,)),
    ],
)
def test_no_batch_that_was_fetched_ahead_before_a_switch(
    endpoint: str, method: str | None, zero_copy: bool, collate_fn: Any
) -> None:
    loader = SoftDataLoader(
        "1",
        endpoint,
        CONFIG,
        ShmMedium,
        num_slots=16,
        batch_size=3,
        zero_copy=zero_copy,
        num_workers=2 if method else 0,
        multiprocessing_context=method,
        collate_fn=collate_fn,
    )
    batches = iter(loader)
    for i in range(40):
        for _ in range(i % 5):
            batch = next(batches)
            assert batch["y"].tolist() == [i % 3 + 1] * 3
            assert batch["x"].eq(i % 3 + 1).all()
            if collate_fn is not None:
                assert batch["double"].tolist() == [2 * (i % 3 + 1)] * 3
        loader.set_model(str((i + 1) % 3 + 1))
    if method:
        # A worker that is told to end while it sends a batch may abort. In a moment they have sent all that they were
        # asked for.
        time.sleep(0.5)
    del batches


def test_single_samples_of_workers_after_a_switch(endpoint: str) -> None:
    loader = SoftDataLoader(
        "1", endpoint, CONFIG, ShmMedium, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    samples = iter(loader)
    for i in range(20):
        for _ in range(3):
            assert next(samples)["y"] == i % 3 + 1
        loader.set_model(str((i + 1) % 3 + 1))
    del samples
