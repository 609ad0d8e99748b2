"""The loader of a recording: the batches and the states of a live one, ranks, orders, and the way on with a live one."""

from __future__ import annotations

import copy
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of

from softs_fast import ConfigError, ReplayLoader, ShmMedium, SoftDataLoader
from softs_fast.loader import endless

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
#: Live batches of 4 that are recorded.
N_BATCHES = 10


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(endless, "Client", NumberedClient)


def live(**arguments: Any) -> SoftDataLoader:
    how = {"num_slots": 64, "batch_size": 4, "ordered": True, **arguments}
    return SoftDataLoader("0", "ipc:///unused", CONFIG, ShmMedium, **how)


def recorded(folder: Path, start: int = 0, **arguments: Any) -> list[Any]:
    """Record a live loader; its batches."""
    with live(record=folder, **arguments) as loader:
        if start:
            loader.load_state_dict({"positions": {"0": start}})
        return [copy.deepcopy(batch) for batch in islice(loader, N_BATCHES)]


def all_numbers(loader: ReplayLoader) -> list[list[int]]:
    return [numbers_of(batch) for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_and_states_are_those_of_the_live_loader(tmp_path: Path, num_workers: int) -> None:
    batches = recorded(tmp_path)
    workers = {"num_workers": num_workers, "multiprocessing_context": "fork"} if num_workers else {}
    with ReplayLoader(tmp_path, batch_size=4, batch_config=CONFIG, **workers) as loader:
        assert len(loader) == N_BATCHES
        for n in range(2):
            with live() as again:
                for replayed, batch, other in zip(loader, batches, again, strict=False):
                    assert list(replayed) == list(batch)
                    assert all(torch.equal(replayed[name], batch[name]) for name in batch)
                    assert loader.state_dict() == again.state_dict()
                    assert other["y"].tolist() == batch["y"].tolist()
            assert loader.state_dict() == {"positions": {"0": 4 * N_BATCHES}}, n


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_recording_in_a_store_is_replayed_as_one_in_a_folder(tmp_path: Path, num_workers: int) -> None:
    pytest.importorskip("fsspec")
    batches = recorded(tmp_path)
    workers = {"num_workers": num_workers, "multiprocessing_context": "fork"} if num_workers else {}
    with ReplayLoader(tmp_path.as_uri(), batch_size=4, cache_bytes=1, **workers) as loader:
        replayed = all_numbers(loader)
    assert replayed == [numbers_of(batch) for batch in batches]


def test_batches_that_are_kept_are_not_overwritten(tmp_path: Path) -> None:
    recorded(tmp_path)
    with ReplayLoader(tmp_path, batch_size=4) as loader:
        kept = list(loader)
    assert [numbers_of(batch) for batch in kept] == [list(range(4 * i, 4 * i + 4)) for i in range(N_BATCHES)]


def test_the_last_samples_and_then_live_ones_without_a_gap_or_a_repeat(tmp_path: Path) -> None:
    recorded(tmp_path)
    with ReplayLoader(tmp_path, batch_size=3, last=10) as loader, live() as later:
        numbers = all_numbers(loader)
        assert numbers == [[30, 31, 32], [33, 34, 35], [36, 37, 38], [39]]
        later.load_state_dict(loader.state_dict())
        assert numbers_of(next(iter(later))) == [40, 41, 42, 43]
    with pytest.raises(ConfigError, match="has 40 samples, expected at least 41"):
        ReplayLoader(tmp_path, last=41)


def test_a_replay_goes_on_where_a_live_loader_or_a_replay_stopped(tmp_path: Path) -> None:
    recorded(tmp_path, start=8)
    with live() as loader:
        loader.load_state_dict({"positions": {"0": 16}})
        next(iter(loader))
        state = loader.state_dict()
    with ReplayLoader(tmp_path, batch_size=4) as loader:
        loader.load_state_dict(state)
        assert numbers_of(next(iter(loader))) == [20, 21, 22, 23]
        # An iterator goes on where the last one stopped.
        assert numbers_of(next(iter(loader))) == [24, 25, 26, 27]
        assert loader.state_dict() == {"positions": {"0": 28}}
        for positions in ({}, {"0": 7}, {"0": 49}):
            with pytest.raises(ConfigError, match=r"goes on with sample \d+ of each rank, .* 8 to 47"):
                loader.load_state_dict({"positions": positions})
        with pytest.raises(ConfigError, match="each of 2 ranks, but 1 share"):
            loader.load_state_dict({"positions": {"0": 8}, "world_size": 2})
        for wrong in (None, {}, {"positions": 1}, {"replayed": {"0": -1}}):
            with pytest.raises(ConfigError):
                loader.load_state_dict(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("recorders", [1, 2])
def test_ranks_share_a_recording_and_go_in_step(tmp_path: Path, recorders: int, seed: int | None) -> None:
    for rank in range(recorders):
        recorded(tmp_path, rank=rank, world_size=recorders)
    n = 4 * N_BATCHES * recorders // 3 * 3
    loaders = [
        ReplayLoader(tmp_path, batch_size=4, rank=rank, world_size=3, shuffle_seed=seed) for rank in range(3)
    ]
    numbers = [flat(all_numbers(loader)) for loader in loaders]
    assert sorted(flat(numbers)) == list(range(n))
    assert {len(loader) for loader in loaders} == {-(-n // 12)}
    if seed is None:
        assert numbers == [list(range(rank, n, 3)) for rank in range(3)]
        state = {"positions": {"0": n // 3}, "world_size": 3}
        assert [loader.state_dict() for loader in loaders] == [state] * 3
    for loader in loaders:
        loader.close()


def test_an_order_by_a_seed_is_the_same_again_and_another_one_in_each_epoch(tmp_path: Path) -> None:
    recorded(tmp_path)
    one, other = (ReplayLoader(tmp_path, batch_size=4, shuffle_seed=7) for _ in range(2))
    first = all_numbers(one)
    assert sorted(flat(first)) == list(range(40)) != flat(first)
    for _ in islice(other, 3):
        pass
    state = other.state_dict()
    assert "positions" not in state, "no live loader can go on there"
    later = ReplayLoader(tmp_path, batch_size=4, shuffle_seed=7)
    later.load_state_dict(state)
    assert all_numbers(later) == first[3:]
    second = all_numbers(later)
    assert sorted(flat(second)) == list(range(40))
    assert second != first
    later.set_epoch(0)
    assert all_numbers(later) == first
    for loader in (one, other, later):
        loader.close()


def test_the_state_of_a_recording_without_an_order_is_none_of_a_live_loader(tmp_path: Path) -> None:
    recorded(tmp_path, ordered=False)
    with ReplayLoader(tmp_path, batch_size=4) as loader, live() as other:
        next(iter(loader))
        with pytest.raises(ConfigError, match="the state is none of"):
            other.load_state_dict(loader.state_dict())
        loader.load_state_dict(loader.state_dict())
        assert numbers_of(next(iter(loader))) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, r"shuffle_seed 7, and this one has shuffle_seed None"),
        ({"shuffle_seed": 8}, "shuffle_seed 7, and this one has shuffle_seed 8"),
        ({"shuffle_seed": 7, "rank": 0, "world_size": 1}, "world_size 2, and this one has world_size 1"),
        ({"shuffle_seed": 7, "rank": 0, "world_size": 2, "last": 20}, "begin 0, and this one has begin 10"),
    ],
)
def test_a_state_of_another_order_is_refused(tmp_path: Path, arguments: Any, text: str) -> None:
    recorded(tmp_path)
    ranks = {"rank": 0, "world_size": 2} if "world_size" in text + str(arguments) else {}
    with ReplayLoader(tmp_path, shuffle_seed=7, **ranks) as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
    with ReplayLoader(tmp_path, **arguments) as other, pytest.raises(ConfigError, match=text):
        other.load_state_dict(state)


def test_a_shuffled_replay_begins_or_ends_where_a_live_loader_is_but_not_between(tmp_path: Path) -> None:
    recorded(tmp_path)
    with ReplayLoader(tmp_path, batch_size=4, shuffle_seed=7) as loader:
        for position in (0, 40):
            loader.load_state_dict({"positions": {"0": position}})
            assert sorted(flat(all_numbers(loader))) == list(range(40))
        with pytest.raises(ConfigError, match="with sample 20 of each rank, and this replay shuffles"):
            loader.load_state_dict({"positions": {"0": 20}})
        next(iter(loader))
        state = loader.state_dict()
    with live(record=tmp_path) as later:
        later.load_state_dict({"positions": {"0": 40}})
        next(iter(later))
    longer = ReplayLoader(tmp_path, batch_size=4, shuffle_seed=7)
    with longer, pytest.raises(ConfigError, match="end 40, and this one has end 44"):
        longer.load_state_dict(state)


def test_the_state_at_the_end_of_a_shuffled_epoch_knows_the_epoch(tmp_path: Path) -> None:
    recorded(tmp_path)
    with ReplayLoader(tmp_path, batch_size=4, shuffle_seed=7) as loader, live() as other:
        first = all_numbers(loader)
        state = loader.state_dict()
        assert state == {"positions": {"0": 40}, "epoch": 1}
        other.load_state_dict(state)
        assert numbers_of(next(iter(other))) == [40, 41, 42, 43]
        second = all_numbers(loader)
        loader.load_state_dict(state)
        assert all_numbers(loader) == second != first


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_newest_iterator_ends_those_before_it(tmp_path: Path, num_workers: int) -> None:
    recorded(tmp_path)
    one_iterator = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
    with ReplayLoader(tmp_path, batch_size=4, **(one_iterator if num_workers else {})) as loader:
        older = iter(loader)
        got = numbers_of(next(older))
        newest = iter(loader)
        for batch in newest:
            got += numbers_of(batch)
            assert next(older, None) is None
        assert got == list(range(40))
        # So does a state.
        older = iter(loader)
        next(older)
        loader.load_state_dict({"positions": {"0": 20}})
        assert next(older, None) is None
        assert numbers_of(next(iter(loader))) == [20, 21, 22, 23]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"in_order": False}, "leave out in_order"),
        ({"batch_size": 0}, "batch_size must be a whole number and at least 1"),
        ({"last": 0}, "last must be a whole number and at least 1"),
        ({"shuffle_seed": -1}, "shuffle_seed must be"),
        ({"rank": 1}, "rank and world_size must be"),
        (
            {"shuffle": True, "drop_last": True},
            "leave out drop_last, shuffle, or make a DataLoader of a Recor",
        ),
        ({"rank": 0, "world_size": 41}, "expected at least 41: one for each rank"),
    ],
)
def test_arguments_are_checked(tmp_path: Path, arguments: Any, text: str) -> None:
    recorded(tmp_path)
    with pytest.raises(ConfigError, match=text):
        ReplayLoader(tmp_path, **arguments)
