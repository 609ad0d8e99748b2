"""Ordered streams: which samples come, in which batch, through switches and workers."""

import functools
import itertools
import pickle
import sys
from ctypes import c_uint32
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of

from softs_fast import NoSupplier, ShmMedium, SoftDataLoader, SoftIterableDataset
from softs_fast.loader import endless as iterable_dataset
from softs_fast.loader.workers import _RequestedBatches, _Requests

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
# torch warns where a machine has fewer cores than a loader has workers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

KINDS = pytest.mark.parametrize("zero_copy", [False, True], ids=["gathered", "zero_copy"])
FIRST = ("0", "ipc:///unused", CONFIG, ShmMedium)


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)


def loader(**arguments: Any) -> SoftDataLoader:
    arguments = {"num_slots": 64, "batch_size": 4, "ordered": True, **arguments}
    return SoftDataLoader(*FIRST, **arguments)


def client_of(loader: SoftDataLoader) -> Any:
    return loader.soft_dataset._open_client(loader._plan).client


@KINDS
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_are_in_order_for_any_number_of_workers(zero_copy: bool, num_workers: int) -> None:
    context = "fork" if num_workers else None
    with_workers = loader(zero_copy=zero_copy, num_workers=num_workers, multiprocessing_context=context)
    batches = iter(with_workers)
    for first in range(0, 80, 4):
        assert numbers_of(next(batches)) == list(range(first, first + 4))
    del batches


@KINDS
@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_each_iterator_of_workers_goes_on_where_the_last_one_stopped(
    zero_copy: bool, persistent_workers: bool, num_workers: int
) -> None:
    data = loader(
        zero_copy=zero_copy,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        multiprocessing_context="fork",
    )
    numbers = [numbers_of(batch) for n_batches in (3, 1, 5) for batch in islice(data, n_batches)]
    assert numbers == [list(range(4 * i, 4 * i + 4)) for i in range(9)]
    assert data.state_dict() == {"positions": {"0": 36}}


def test_iterators_of_workers_that_live_at_once_share_the_stream() -> None:
    data = loader(num_workers=2, multiprocessing_context="fork")
    first, second = iter(data), iter(data)
    numbers = [numbers_of(next(batches))[0] for batches in (first, first, second, first, second)]
    assert numbers == [0, 4, 8, 12, 16]
    del first, second


class Unsendable:
    """As an image of PIL of which the file is truncated."""

    def __getstate__(self) -> Any:
        raise ValueError("cannot be pickled")


def fail_at(samples: list[Any], failed: set[int]) -> Any:
    """A collate_fn that fails once per worker: by an exception, when its batch is sent, and by `sys.exit`."""
    number = int(samples[0]["y"])
    is_first = number in (8, 16, 24) and number not in failed
    failed.add(number)
    if is_first and (number == 8 or torch.utils.data.get_worker_info() is None):
        raise ValueError(f"sample {number}")
    if is_first and number == 24:
        sys.exit(3)
    more = {"z": Unsendable()} if is_first else {}
    return torch.utils.data.default_collate(samples) | more


@dataclass
class Stacks:
    """A collate_fn without a hash, as those of transformers are."""

    key: str = "y"

    def __call__(self, samples: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        return torch.stack([sample[self.key] for sample in samples])


@KINDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_collate_fn_without_a_hash(zero_copy: bool, num_workers: int) -> None:
    context = "fork" if num_workers else None
    data = loader(
        zero_copy=zero_copy, num_workers=num_workers, multiprocessing_context=context, collate_fn=Stacks()
    )
    firsts = itertools.count(0, 4)
    for _ in range(2):
        batches: Any = iter(data)
        for _ in range(3):
            first = next(firsts)
            assert next(batches).tolist() == list(range(first, first + 4))
        del batches


@KINDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_does_not_end_an_iterator(zero_copy: bool, num_workers: int) -> None:
    context = "fork" if num_workers else None
    collate = functools.partial(fail_at, failed=set())
    data = loader(
        zero_copy=zero_copy, num_workers=num_workers, multiprocessing_context=context, collate_fn=collate
    )
    batches, first, n_errors = iter(data), 0, 0
    while first < 40:
        try:
            numbers = numbers_of(next(batches))
        except (ValueError, RuntimeError):
            n_errors += 1
            continue
        assert numbers == list(range(first, first + 4))
        first += 4
    # The batch is due again, and another worker may be asked for it; what fails behind it in the meantime is made again.
    assert (1 if num_workers else 3) <= n_errors <= 3 * max(1, num_workers)
    del batches


class Bites(torch.utils.data.IterableDataset[Any]):
    """Takes three samples with one iterator after the other."""

    def __init__(self, data: SoftIterableDataset) -> None:
        self.data = data

    def __iter__(self) -> Any:
        while True:
            yield from islice(self.data, 3)


def test_iterators_that_a_worker_makes_by_itself_go_on() -> None:
    data = Bites(SoftIterableDataset(*FIRST, ordered=True))
    one_by_one = torch.utils.data.DataLoader(data, None, num_workers=1, multiprocessing_context="fork")
    assert [int(sample["y"]) for sample in islice(one_by_one, 10)] == list(range(10))


@KINDS
def test_samples_one_by_one_in_workers_that_take_turns(zero_copy: bool) -> None:
    data = SoftIterableDataset(*FIRST, ordered=True, zero_copy=zero_copy)
    one_by_one = torch.utils.data.DataLoader(data, None, num_workers=2, multiprocessing_context="fork")
    assert [int(sample["y"]) for sample in islice(one_by_one, 12)] == list(range(12))


@KINDS
def test_an_iterator_goes_on_where_the_last_one_stopped(zero_copy: bool) -> None:
    data = loader(zero_copy=zero_copy)
    assert [numbers_of(batch)[0] for batch in islice(data, 3)] == [0, 4, 8]
    assert numbers_of(next(iter(data))) == [12, 13, 14, 15]
    samples = iter(data.soft_dataset)
    assert [int(next(samples)["y"]) for _ in range(3)] == [16, 17, 18]
    assert numbers_of(next(iter(data))) == [19, 20, 21, 22], "the rest of a block is not lost"


@KINDS
def test_each_product_goes_on_where_it_was_left(zero_copy: bool) -> None:
    data = loader(zero_copy=zero_copy)
    batches = iter(data)
    for product, first in [("0", 0), ("7", 0), ("0", 4), ("7", 4)]:
        data.set_model(product)
        assert numbers_of(next(batches), int(product)) == list(range(first, first + 4))
    assert client_of(data).followed == ["0", "7", "0", "7"]


@pytest.mark.parametrize("at_once", [1, 3, 1000])
@KINDS
def test_a_switch_within_a_batch_loses_nothing(
    zero_copy: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NumberedClient, "at_once", at_once)
    data = loader(zero_copy=zero_copy)
    batches = iter(data)
    next(batches)
    made = 0

    def switch_at_the_third() -> None:
        nonlocal made
        made += 1
        if made == 3:
            data.set_model("5")

    client_of(data).before_each = switch_at_the_third
    assert numbers_of(next(batches), 5) == [0, 1, 2, 3]
    data.set_model("0")
    assert numbers_of(next(batches)) == [4, 5, 6, 7], "what was dropped comes again"


def test_a_block_that_is_dropped_comes_back_before_the_next_is_taken() -> None:
    data = loader(zero_copy=True, num_slots=8, request_timeout=0.0)
    batches = iter(data)
    kept = next(batches)
    client_of(data).before_each = lambda: data.set_model("5")
    assert numbers_of(next(batches), 5) == [0, 1, 2, 3]
    assert numbers_of(kept) == [0, 1, 2, 3]


@KINDS
def test_no_sample_of_an_old_model_from_a_block(zero_copy: bool) -> None:
    data = loader(zero_copy=zero_copy).soft_dataset
    samples = iter(data)
    assert [int(next(samples)["y"]) for _ in range(2)] == [0, 1]
    data.set_model("3")
    sample = next(samples)
    assert sample["x"].tolist() == [0, 3]
    data.set_model("0")
    assert int(next(samples)["y"]) == 2


def test_a_batch_that_was_given_up_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumberedClient, "at_once", 3)
    data = loader(request_timeout=0.0)
    next(iter(data))
    client = client_of(data)
    gather, calls = client.gather, []

    def stall_after_one(*arguments: Any) -> int:
        calls.append(arguments)
        return int(gather(*arguments)) if len(calls) == 1 else arguments[2]

    client.gather = stall_after_one
    with pytest.raises(NoSupplier):
        next(iter(data))
    assert data.state_dict() == {"positions": {"0": 4}}
    client.gather = gather
    assert numbers_of(next(iter(data))) == [4, 5, 6, 7]


def test_what_workers_of_another_loader_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(id=2, num_workers=3, dataset=None)
    data = loader()
    monkeypatch.setattr(iterable_dataset, "get_worker_info", lambda: worker)
    next(iter(data.soft_dataset))
    assert client_of(data).seeks == [("0", 8, 4, 12, 0)]
    assert client_of(data).options["ordered"] is True


@pytest.mark.parametrize(("batch_size", "n"), [(4, 4), (None, 1)])
def test_what_workers_of_a_loader_ask_for(
    monkeypatch: pytest.MonkeyPatch, batch_size: int | None, n: int
) -> None:
    # Without the thread that serves memory to other processes.
    monkeypatch.setattr("softs_fast.loader.workers.ForkingPickler", pickle)
    data = loader(batch_size=batch_size)
    data.load_state_dict({"positions": {"0": 7}})
    attempt = c_uint32()
    requested = _RequestedBatches(data.soft_dataset, data._plan, 3, attempt, None)
    requests = _Requests(data.soft_dataset, data.soft_dataset.own_positions(), n, attempt)
    asked = [next(requests) for _ in range(9)]
    assert [request.first for request in asked] == [7 + n * i for i in range(9)]
    for request in asked[1::3]:
        answer = requested[request]
        assert answer.product == "0"
        numbers = answer.unpack()["y"].tolist()
        assert numbers == (list(range(request.first, request.first + 4)) if batch_size else request.first)
    opened = data.soft_dataset._open
    assert opened is not None
    client: Any = opened.client
    assert client.seeks == [("0", 7 + n, n, 3 * n, 0)], "a worker that is asked in turns goes on"
    requested[asked[0]].unpack()
    assert client.seeks[1:] == [("0", 7, n, 3 * n, 0)]
    data.set_model("1")
    assert requested[asked[3]].unpack() is None, "another product is wanted"
    data.set_model("0")
    assert requested[asked[3]].unpack() is None, "it was asked for before"
    requests.restart()
    assert next(requests)[1:] == (data.soft_dataset.source.version(), 7)


def test_streams_without_order_are_not_sought() -> None:
    data = loader(ordered=False)
    batches = iter(data)
    next(batches)
    data.set_model("1")
    next(batches)
    assert client_of(data).seeks == []
    assert data.state_dict() == {"positions": {"0": 4, "1": 4}, "numbered": 4}


def test_few_positions_are_remembered() -> None:
    data = loader()
    batches = iter(data)
    for product in range(100):
        data.set_model(str(product))
        next(batches)
    assert list(data.state_dict()["positions"]) == [str(product) for product in range(36, 100)]
