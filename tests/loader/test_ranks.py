"""Ranks and workers share a stream: each number goes to one of them, ordered or not."""

import multiprocessing
import warnings
from itertools import islice, product
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from numbered_client import CONFIG, NumberedClient, numbers_of
from served import served
from torch.testing._internal.distributed.fake_pg import FakeStore

import softs_fast
from softs_fast import (
    ConfigError,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
)
from softs_fast.collectives import ShmStrategy
from softs_fast.collectives.host.group import joined
from softs_fast.loader import endless, ranks

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

FIRST = ("0", "ipc:///unused", CONFIG, ShmMedium)
XY = softs_fast.make_xy_config((8,), "float32", (), "int64")
#: What each of two ranks takes with each loader.
N_BATCHES, B = 10, 4


def generate(product_id: str, sequence: int) -> bytes:
    return XY.encode(x=torch.zeros(8), y=torch.tensor(sequence))


def take(rank: int, frontend: str, store: str, pipe: Connection) -> None:
    """Send what a rank takes with each kind of loader."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {}
    for ordered, kind in product((False, True), ("main", "threads", "processes", "torch")):
        workers: dict[str, Any] = {"num_workers": 0 if kind == "main" else 2}
        if kind in ("processes", "torch"):
            workers["multiprocessing_context"] = "fork"
        arguments = (f"{kind}{ordered}", frontend, XY, ShmMedium)
        if kind == "torch":
            data = SoftIterableDataset(*arguments, ordered=ordered)
            loader: Any = torch.utils.data.DataLoader(data, batch_size=B, **workers)
        else:
            loader = SoftDataLoader(*arguments, ordered=ordered, batch_size=B, **workers)
            data = loader.soft_dataset
        batches = iter(loader)
        numbers = torch.cat([batch["y"] for batch in islice(batches, N_BATCHES)]).tolist()
        if kind != "torch" and ordered:
            assert loader.state_dict() == {"positions": {arguments[0]: len(numbers)}, "world_size": 2}
        del batches
        data.close()
        found[f"{kind} {ordered}"] = numbers
    dist.destroy_process_group()
    pipe.send(found)


@pytest.mark.timeout(180)
def test_two_ranks_with_two_workers_each_have_every_number_once(
    frontend: str, backend: str, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    found = []
    with served(frontend, backend, generate, [".*"], ShmMedium, XY.nbytes()):
        pipes = [context.Pipe() for _ in range(2)]
        running = [
            # No daemons: these have no children.
            context.Process(target=take, args=(rank, frontend, str(tmp_path / "store"), pipes[rank][1]))
            for rank in range(2)
        ]
        for process in running:
            process.start()
        try:
            for here, there in pipes:
                there.close()
                with here:
                    found.append(here.recv())
            for process in running:
                process.join()
                assert process.exitcode == 0
        finally:
            for process in running:
                process.kill()
                process.join()
                process.close()
    zero, one = found
    assert len(zero) == 8
    for kind in zero:
        for rank, numbers in enumerate((zero[kind], one[kind])):
            assert {number % 2 for number in numbers} == {rank}, kind
        together = sorted(zero[kind] + one[kind])
        assert len(set(together)) == 2 * N_BATCHES * B, f"{kind}: samples are repeated"
        if kind.endswith("True"):
            assert together == list(range(2 * N_BATCHES * B)), kind
    assert zero["threads True"] == list(range(0, 2 * N_BATCHES * B, 2)), "in order"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_next_workers_of_an_unordered_loader_repeat_nothing(
    frontend: str, backend: str, num_workers: int
) -> None:
    with served(frontend, backend, generate, ["m"], ShmMedium, XY.nbytes()):
        loader = SoftDataLoader(
            "m",
            frontend,
            XY,
            ShmMedium,
            batch_size=B,
            rank=1,
            world_size=3,
            num_workers=num_workers,
            multiprocessing_context="fork",
        )
        numbers: list[int] = []
        for _ in range(3):
            for batch in islice(loader, 6):
                numbers += batch["y"].tolist()
        assert len(set(numbers)) == 3 * 6 * B
        assert {number % 3 for number in numbers} == {1}


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(endless, "Client", NumberedClient)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_rank_is_resumed_exactly_with_any_batch_size_and_workers(
    numbered: None, num_workers: int, zero_copy: bool
) -> None:
    def new(batch_size: int, **arguments: Any) -> SoftDataLoader:
        arguments |= {"num_slots": 64, "batch_size": batch_size, "ordered": True}
        return SoftDataLoader(*FIRST, rank=2, world_size=3, **arguments)

    workers = {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}
    first, second = new(4, zero_copy=zero_copy, **workers), new(6, zero_copy=zero_copy)
    numbers = [number for batch in islice(first, 5) for number in numbers_of(batch)]
    second.load_state_dict(first.state_dict())
    numbers += [number for batch in islice(second, 5) for number in numbers_of(batch)]
    assert numbers == list(range(2, 3 * 50, 3))


def test_a_state_of_other_ranks_is_refused() -> None:
    def data(**arguments: Any) -> SoftIterableDataset:
        return SoftIterableDataset(*FIRST, ordered=True, **arguments)

    state = data(rank=1, world_size=2).state_dict()
    assert state == {"positions": {}, "world_size": 2}
    data(rank=0, world_size=2).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"each of 2 ranks, but 1 share the stream now.*init_process_group"):
        data().load_state_dict(state)
    with pytest.raises(ConfigError, match="each of 1 ranks, but 4 share the stream now"):
        data(rank=0, world_size=4).load_state_dict(data().state_dict())


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 0},
        {"world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": -1, "world_size": 2},
        {"rank": True, "world_size": 2},
        {"rank": 0, "world_size": 2.0},
    ],
)
def test_ranks_that_are_none(given: dict[str, Any]) -> None:
    for make in (SoftIterableDataset, SoftDataLoader):
        with pytest.raises(ConfigError, match="rank and world_size"):
            make(*FIRST, **given)


def test_which_share_a_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def share(worker: Any = None, **arguments: Any) -> Any:
        monkeypatch.setattr(endless, "ranks_of_process", lambda: ranks.Ranks(1, 4))
        data = SoftIterableDataset(*FIRST, **arguments)
        state = data.__getstate__()
        if worker is not None:
            # A worker that was not forked: torch.distributed is not initialised there.
            monkeypatch.setattr(endless, "ranks_of_process", lambda: ranks.Ranks(0, 1))
        data.__setstate__(state)
        monkeypatch.setattr(endless, "get_worker_info", lambda: worker)
        found = tuple(data._share())
        monkeypatch.setattr(endless, "get_worker_info", lambda: None)
        return found

    worker = SimpleNamespace(id=2, num_workers=3)
    assert share() == (1, 4)
    assert share(ordered=True) == (1, 4)
    assert share(rank=0, world_size=1) == (0, 1), "what is given counts"
    assert share(worker) == (1 + 4 * 2, 12)
    assert share(worker, ordered=True) == (1, 4), "its workers take turns"
    assert share(worker, rank=0, world_size=1) == (2, 3)


def test_workers_of_a_job_share_a_stream_without_torch_distributed(
    numbered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_of_worker", ranks.Ranks(1, 3))
    loader = SoftDataLoader(*FIRST, batch_size=2, ordered=True)
    batches = iter(loader)
    assert numbers_of(next(batches)) == [1, 4]
    # Another epoch of the job with the same place, and then one of another size.
    ranks.set_ranks_of_worker(ranks.Ranks(1, 3))
    assert numbers_of(next(batches)) == [7, 10]
    ranks.set_ranks_of_worker(ranks.Ranks(1, 2))
    for again in (batches, batches, iter(loader)):
        with pytest.raises(ConfigError, match=r"was rank 1 of 3 when it began.*is rank 1 of 2 now"):
            next(again)
    new = SoftDataLoader(*FIRST, batch_size=2, ordered=True)
    assert numbers_of(next(iter(new))) == [1, 3]
    # The job is over, and what was begun goes on.
    ranks.set_ranks_of_worker(None)
    assert numbers_of(next(iter(new))) == [5, 7]
    for one in (loader, new):
        one.soft_dataset.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_was_begun_before_the_job_is_refused(
    numbered: None, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr(ranks, "_of_worker", None)
    workers = {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}
    loader, given = (
        SoftDataLoader(*FIRST, batch_size=2, ordered=True, **workers, **place)
        for place in ({}, {"rank": 0, "world_size": 1})
    )
    batches, others = iter(loader), iter(given)
    assert numbers_of(next(batches)) == numbers_of(next(others)) == [0, 1]
    ranks.set_ranks_of_worker(ranks.Ranks(0, 2))
    with pytest.raises(ConfigError, match="is rank 0 of 2 now"):
        next(batches)
    assert numbers_of(next(others)) == [2, 3], "what is given counts"
    for one in (loader, given):
        one.soft_dataset.close()


def test_a_stream_that_was_begun_before_the_process_group_is_refused(
    numbered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=2)
    batches = iter(loader)
    assert numbers_of(next(batches)) == [0, 1]
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        for again in (batches, iter(loader)):
            with pytest.raises(ConfigError, match=r"is rank 1 of 2 now.*new loader after init_process_group"):
                next(again)
        new = SoftDataLoader(*FIRST, batch_size=2)
        assert numbers_of(next(iter(new))) == [1, 3]
    finally:
        dist.destroy_process_group()
    for one in (loader, new):
        one.soft_dataset.close()


def test_a_process_with_a_strategy_alone_has_to_say_which_samples_it_takes(
    numbered: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ranks, "_of_worker", None)
    with ShmStrategy().init(0, 1, tmp_path) as alone:
        assert alone in joined
        SoftIterableDataset(*FIRST).state_dict()
        monkeypatch.setattr(ShmStrategy, "size", 2)
        with pytest.raises(ConfigError, match=r"is rank 0 of 2 of a ShmStrategy.*rank= and world_size="):
            next(iter(SoftDataLoader(*FIRST, batch_size=2)))
        given = SoftDataLoader(*FIRST, batch_size=2, rank=1, world_size=2)
        assert numbers_of(next(iter(given))) == [1, 3]
    assert alone not in joined


def test_a_process_that_is_no_worker_asks_its_own_torch(
    numbered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endless, "ranks_of_process", lambda: ranks.Ranks(0, 2))
    data = SoftIterableDataset(*FIRST)
    state = data.__getstate__()
    monkeypatch.setattr(endless, "ranks_of_process", lambda: ranks.Ranks(1, 2))
    data.__setstate__(state)
    assert [int(sample["y"]) for sample in islice(data, 3)] == [1, 3, 5]


def test_each_iterator_of_persistent_workers_of_torch_begins_at_the_first_number_of_its_rank(
    numbered: None,
) -> None:
    data = SoftIterableDataset(*FIRST, ordered=True, rank=1, world_size=2)
    loader = torch.utils.data.DataLoader(
        data, 2, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    for _ in range(2):
        numbers = [number for batch in islice(loader, 4) for number in numbers_of(batch)]
        assert sorted(numbers) == [1, 3, 5, 7, 9, 11, 13, 15]
