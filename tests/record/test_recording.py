"""Samples by number, of one rank or of all; the dataset of torch; the supplier."""

from __future__ import annotations

import multiprocessing
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import KINDS, equal, kinds, plain, record, sample
from torch.utils.data import DataLoader

import softs_fast as sf
from softs_fast import ConfigError, DamagedError, GeneratorFailed, RecordedDataset
from softs_fast.record import Recording, recording, replay_supplier


@pytest.fixture
def of_ranks(tmp_path: Path) -> Path:
    """A recording of three ranks, which have not come equally far."""
    for rank, n in enumerate((34, 33, 30)):
        numbers = range(rank, 3 * n + rank, 3)
        record(tmp_path, numbers, rank=rank, world_size=3, shard_bytes=300)
    return tmp_path


def test_the_samples_of_all_ranks_are_one_recording(of_ranks: Path) -> None:
    with Recording(of_ranks, verify=True) as found:
        expected = sorted([*range(0, 102, 3), *range(1, 100, 3), *range(2, 92, 3)])
        assert list(found.numbers) == expected
        assert equal(found.batch(expected), plain(expected))
        assert equal(found.batch(range(1, 97, 3)), plain(range(1, 97, 3)))
        assert found.span == range(90)
        assert found.origin(31)["rank"] == 1


def test_a_recording_that_lacks_a_rank_or_has_another_ones(of_ranks: Path, tmp_path: Path) -> None:
    one = of_ranks / "rank-00001-of-00003"
    with pytest.raises(ConfigError, match="has the samples of rank 1 of 3; give the folder that it is in"):
        Recording(one)
    one.rename(of_ranks / "aside")
    with pytest.raises(DamagedError, match="lacks the recording of rank 1 of 3"):
        Recording(of_ranks)
    (of_ranks / "rank-00002-of-00003").rename(one)
    (of_ranks / "aside").rename(of_ranks / "rank-00002-of-00003")
    with pytest.raises(DamagedError, match=r"has rank=2, expected 1: it is of another recording"):
        Recording(of_ranks)


def test_a_number_that_there_is_not(tmp_path: Path) -> None:
    record(tmp_path, range(10, 20))
    with Recording(tmp_path) as found:
        for number in (9, 20, -1):
            with pytest.raises(ConfigError, match=f"has no sample {number}: it has the numbers 10 to 19"):
                found.batch([number])


def test_numbers_that_are_missing_within_a_shard(tmp_path: Path) -> None:
    for numbers in (range(5), range(7, 9), range(20, 30)):
        record(tmp_path, numbers, shard_bytes=1 << 20)
    there = [*range(5), 7, 8, *range(20, 30)]
    with Recording(tmp_path) as found:
        assert found.numbers.tolist() == there
        assert equal(found.batch(there), plain(there))
        with pytest.raises(ConfigError, match="has no sample 6"):
            found.batch([6])
        with pytest.raises(DamagedError, match=r"lacks samples .* number 5 is the first"):
            _ = found.span
    data = RecordedDataset(tmp_path)
    assert [int(data[i]["y"]) for i in range(len(data))] == there


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST_OPEN", 2)
    record(tmp_path, range(300))
    with Recording(tmp_path) as found:
        order = torch.randperm(300).tolist()
        assert equal(found.batch(order), plain(order))
        assert len(found._files) == 2


def test_a_recording_in_another_process(tmp_path: Path) -> None:
    record(tmp_path, range(50), make=kinds, config=KINDS)
    found = pickle.loads(pickle.dumps(Recording(tmp_path, batch_config=KINDS)))
    assert equal(found.batch(range(50)), kinds(range(50)))
    found.close()
    # Closed files are opened again.
    assert equal(found.batch(range(50)), kinds(range(50)))
    found.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_for_a_plain_data_loader(tmp_path: Path, num_workers: int) -> None:
    record(tmp_path, range(50), make=kinds, config=KINDS, shard_bytes=3000)
    data = RecordedDataset(tmp_path, batch_config=KINDS)
    assert len(data) == 50
    assert equal(data[7], KINDS.decode(KINDS.encode(**sample(7))))
    with pytest.raises(IndexError):
        data[50]
    context = multiprocessing.get_context("fork") if num_workers else None
    loader: Any = DataLoader(
        data,
        8,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=KINDS.collate,
        multiprocessing_context=context,
    )
    batches = list(loader)
    assert sorted(n for batch in batches for n in batch["y"].tolist()) == list(range(50))
    for batch in batches:
        assert equal(batch, kinds(batch["y"].tolist()))
    data.recording.close()


def test_a_supplier_serves_what_was_recorded(frontend: str, backend: str, tmp_path: Path) -> None:
    record(tmp_path, range(64), make=kinds, config=KINDS)
    with (
        sf.Broker(sf.EndpointConfig(frontend, backend)),
        replay_supplier(tmp_path, backend, verify=True),
        Recording(tmp_path) as found,
        sf.SoftDataLoader("p", frontend, found.config, batch_size=8, num_slots=32, ordered=True) as loader,
    ):
        for i, batch in enumerate(islice(loader, 8)):
            assert equal(batch, kinds(range(8 * i, 8 * i + 8)))
        with sf.SoftDataLoader(
            "p", frontend, found.config, batch_size=8, ordered=True, request_timeout=4
        ) as later:
            later.load_state_dict(loader.state_dict())
            with pytest.raises(GeneratorFailed, match=r"has no sample \d+: it has the numbers 0 to 63"):
                next(iter(later))
