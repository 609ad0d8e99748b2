"""`num_workers=N` with the default collate_fn: no process, N native threads, and the same batches for every N.

Processes, where something needs them, give the same batches too.
"""

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from native_threads import thread_names
from served import served
from torch.utils.data import default_collate
from waiting import eventually

import softs_fast
from softs_fast import (
    Broker,
    EndpointConfig,
    ShmMedium,
    SoftDataLoader,
    Supplier,
    TCPMedium,
    TensorSpec,
)

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CONFIG = softs_fast.make_xy_config((64,), "float32", (), "int64")
PRODUCTS = ["m", "n"]
B = 4

WORKERS = pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
THREADS = [{"num_workers": n} for n in (0, 1, 2, 5)]
PROCESSES: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
KINDS = pytest.mark.parametrize("zero_copy", [False, True], ids=["gathered", "zero_copy"])


def generate(product_id: str, sequence: int) -> bytes:
    return CONFIG.encode(
        x=torch.full((64,), float(sequence)), y=torch.tensor(2 * sequence + PRODUCTS.index(product_id))
    )


@pytest.fixture
def endpoint(frontend: str, backend: str) -> Iterator[str]:
    """A frontend behind which three suppliers make two streams."""
    with Broker(EndpointConfig(frontend, backend)), ExitStack() as suppliers:
        for _ in range(3):
            suppliers.enter_context(Supplier(generate, PRODUCTS, backend, ShmMedium, CONFIG.nbytes()))
        yield frontend


@pytest.fixture
def new(endpoint: str) -> Iterator[Callable[..., SoftDataLoader]]:
    made: list[SoftDataLoader] = []

    def make(**arguments: Any) -> SoftDataLoader:
        arguments = {"num_slots": 12, "batch_size": B, "ordered": True, **arguments}
        made.append(SoftDataLoader("m", endpoint, CONFIG, ShmMedium, **arguments))
        return made[-1]

    yield make
    for loader in made:
        loader.soft_dataset.close()


def numbers_of(batch: dict[str, torch.Tensor], product: str = "m") -> list[int]:
    """Return the numbers of the samples in a batch; fails if they are not whole, or of another product."""
    assert batch["y"].remainder(2).eq(PRODUCTS.index(product)).all()
    numbers = batch["y"].div(2, rounding_mode="floor")
    assert batch["x"].eq(numbers.unsqueeze(1)).all()
    result: list[int] = numbers.tolist()
    return result


def n_gathering() -> int:
    """How many native threads of this process gather."""
    return thread_names().count("softs-gather")


def rows(first: int) -> list[int]:
    return list(range(first, first + B))


@KINDS
@pytest.mark.parametrize("workers", [*THREADS, PROCESSES])
def test_the_stream_is_the_same_and_no_process_starts(
    new: Callable[..., SoftDataLoader], workers: dict[str, Any], zero_copy: bool
) -> None:
    loader = new(zero_copy=zero_copy, **workers)
    batches = iter(loader)
    for first in range(0, 40 * B, B):
        assert numbers_of(next(batches)) == rows(first)
    assert loader.state_dict() == {"positions": {"m": 40 * B}}
    if workers in THREADS:
        assert multiprocessing.active_children() == []
        opened = loader.soft_dataset._open
        assert opened is not None
        assert opened.client.slot_count == 12 * max(1, loader.num_workers)


@WORKERS
def test_so_many_threads_gather_until_the_dataset_is_closed(
    new: Callable[..., SoftDataLoader], num_workers: int
) -> None:
    loader = new(num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    # The first batch needs one of them; the others may not have begun.
    eventually(lambda: n_gathering() == num_workers, "so many threads")
    # Another iterator shares them.
    next(iter(loader))
    assert n_gathering() == num_workers
    del batches
    loader.soft_dataset.close()
    eventually(lambda: n_gathering() == 0, "no thread")


@WORKERS
def test_batches_are_gathered_ahead(new: Callable[..., SoftDataLoader], num_workers: int) -> None:
    loader = new(num_workers=num_workers, prefetch_factor=3 if num_workers else None)
    kept = next(iter(loader))
    opened = loader.soft_dataset._open
    assert opened is not None
    # The queue has 3 batches for each worker, of which one was handed out.
    taken = B * max(1, 3 * num_workers)
    eventually(lambda: opened.client.position("m") == taken, "batches ahead")
    assert loader.state_dict() == {"positions": {"m": B}}
    assert numbers_of(kept) == rows(0)


@KINDS
@WORKERS
def test_iterators_go_on_where_the_stream_is(
    new: Callable[..., SoftDataLoader], num_workers: int, zero_copy: bool
) -> None:
    loader = new(num_workers=num_workers, zero_copy=zero_copy)
    firsts = itertools.count(0, B)
    for n_batches in (3, 1, 7):
        for batch in itertools.islice(loader, n_batches):
            assert numbers_of(batch) == rows(next(firsts))
    other = iter(loader)
    for batches in (iter(loader), other, other):
        assert numbers_of(next(batches)) == rows(next(firsts))
    first = next(firsts)
    sample = next(iter(loader.soft_dataset))
    assert int(sample["y"]) == 2 * first
    assert numbers_of(next(other)) == rows(first + 1)


def test_nothing_gathered_is_lost_between_two_iterators_without_order(
    new: Callable[..., SoftDataLoader],
) -> None:
    loader = new(num_workers=3, ordered=False)
    numbers = [n for _ in range(20) for batch in itertools.islice(loader, 2) for n in numbers_of(batch)]
    assert len(set(numbers)) == len(numbers) == 40 * B
    # Samples of suppliers that are slow come late, not never: what was gathered ahead is handed out.
    opened = loader.soft_dataset._open
    assert opened is not None
    assert max(numbers) < 40 * B + opened.client.slot_count + 6 * B


@KINDS
@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (2, 5)])
def test_a_state_resumes_with_another_number_of_workers(
    new: Callable[..., SoftDataLoader], zero_copy: bool, before: int, after: int
) -> None:
    first = new(num_workers=before, zero_copy=zero_copy)
    for _ in itertools.islice(first, 5):
        pass
    second = new(num_workers=after, zero_copy=zero_copy)
    batches = iter(second)
    next(batches)
    second.load_state_dict(first.state_dict())
    for start, batch in zip(range(5 * B, 15 * B, B), second, strict=False):
        assert numbers_of(batch) == rows(start)


@KINDS
@pytest.mark.parametrize("workers", [*THREADS, PROCESSES, PROCESSES | {"collate_fn": default_collate}])
def test_each_product_goes_on_where_its_batches_were_left(
    new: Callable[..., SoftDataLoader], workers: dict[str, Any], zero_copy: bool
) -> None:
    loader = new(zero_copy=zero_copy, **workers)
    due = {"m": 0, "n": 0}
    batches = iter(loader)
    for i in range(24):
        for _ in range(i % 4):
            product = loader.model_id
            assert numbers_of(next(batches), product) == rows(due[product])
            due[product] += B
        loader.set_model("mn"[i % 2])
    assert loader.state_dict() == {"positions": due}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_batch_may_take_longer_than_the_timeout_for_a_sample(
    frontend: str, backend: str, num_workers: int, ordered: bool
) -> None:
    def slow(product_id: str, sequence: int) -> bytes:
        time.sleep(0.12)
        return generate(product_id, sequence)

    with served(frontend, backend, slow, ["m"], ShmMedium, CONFIG.nbytes()):
        loader = SoftDataLoader(
            "m",
            frontend,
            CONFIG,
            ShmMedium,
            12,
            request_timeout=1.0,
            batch_size=12,
            ordered=ordered,
            num_workers=num_workers,
        )
        assert sorted(numbers_of(next(iter(loader)))) == list(range(12))


def test_encoded_samples_are_decoded_by_the_threads(frontend: str, backend: str) -> None:
    config = softs_fast.BatchConfig(
        [TensorSpec("y", (), "int64"), TensorSpec("logits", (32,), "float32", codec="topk:4")]
    )

    def encode(product_id: str, sequence: int) -> bytes:
        return config.encode(y=torch.tensor(sequence), logits=torch.arange(32.0).roll(sequence))

    with served(frontend, backend, encode, ["m"], ShmMedium, config.nbytes()):
        loader = SoftDataLoader(
            "m", frontend, config, ShmMedium, 12, batch_size=B, ordered=True, num_workers=2
        )
        for first, batch in zip(range(0, 20 * B, B), loader, strict=False):
            assert batch["y"].tolist() == rows(first)
            assert batch["logits"].indices[:, 0].tolist() == [(31 + n) % 32 for n in rows(first)]


def test_other_mediums_start_no_process_either(frontend: str, backend: str) -> None:
    with served(frontend, backend, generate, ["m"], TCPMedium, CONFIG.nbytes()):
        loader = SoftDataLoader(
            "m", frontend, CONFIG, TCPMedium, 12, batch_size=B, ordered=True, num_workers=2
        )
        for first, batch in zip(range(0, 10 * B, B), loader, strict=False):
            assert numbers_of(batch) == rows(first)
        assert multiprocessing.active_children() == []


def test_what_needs_processes_starts_them() -> None:
    def init(worker: int) -> None:
        pass

    arguments = ("m", "ipc:///unused", CONFIG, ShmMedium)
    assert not SoftDataLoader(*arguments, num_workers=2)._uses_processes
    assert not SoftDataLoader(*arguments, collate_fn=len)._uses_processes
    for needed in ({"collate_fn": len}, {"worker_init_fn": init}, {"multiprocessing_context": "fork"}):
        loader = SoftDataLoader(*arguments, num_workers=2, **needed)  # type: ignore[arg-type]
        assert loader._uses_processes
        assert loader._plan.n_threads == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 2, "prefetch_factor": 0}, "prefetch_factor must be at least 1, got 0"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"num_workers": 2, "timeout": -1}, "timeout"),
    ],
)
def test_arguments_of_torch_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SoftDataLoader("m", "ipc:///unused", CONFIG, ShmMedium, **arguments)
