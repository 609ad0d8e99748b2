"""What loaders record: the batches that they hand out, by whatever way these come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of

import softs_fast as sf
from softs_fast import ConfigError, ShmMedium, SoftDataLoader, SoftsError
from softs_fast.loader import endless
from softs_fast.loader.readers.transfer import Transfer, TransferReader
from softs_fast.record import Recording, shard_writer

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(endless, "Client", NumberedClient)


def new(folder: Any, **arguments: Any) -> SoftDataLoader:
    how = {"num_slots": 64, "batch_size": 4, "ordered": True, "record": folder, **arguments}
    return SoftDataLoader("0", "ipc:///unused", CONFIG, ShmMedium, **how)


def recorded(folder: Path) -> tuple[list[int], list[int]]:
    """The numbers of a recording, and what its samples say of theirs."""
    with Recording(folder, verify=True) as recording:
        numbers = [int(number) for number in recording.numbers]
        return numbers, numbers_of(recording.batch(numbers))


@pytest.mark.parametrize(
    "way",
    [{}, {"zero_copy": True}, {"num_workers": 2, "multiprocessing_context": "fork"}],
    ids=["gathered", "zero copy", "processes"],
)
@pytest.mark.parametrize("ranks", [(0, 1), (1, 3)])
def test_the_numbers_of_what_was_handed_out(tmp_path: Path, way: dict[str, Any], ranks: Any) -> None:
    rank, world_size = ranks
    with new(tmp_path, rank=rank, world_size=world_size, **way) as loader:
        handed_out = [numbers_of(batch) for batch in islice(loader, 5)]
    if world_size > 1:
        for other in (0, 2):
            with new(tmp_path, rank=other, world_size=world_size) as loader:
                next(iter(loader))
    expected = list(range(rank, world_size * 20, world_size))
    assert list(chain.from_iterable(handed_out)) == expected
    numbers, said = recorded(tmp_path)
    assert [n for n in numbers if n % world_size == rank] == expected
    assert numbers == said


def test_what_was_copied_ahead_and_dropped_is_not_recorded(tmp_path: Path) -> None:
    with new(tmp_path) as loader:
        batches = iter(loader)
        next(batches)
        loader.load_state_dict({"positions": {"0": 8}})
        next(iter(loader))
    assert recorded(tmp_path)[0] == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_loader_without_an_order_counts(tmp_path: Path) -> None:
    with new(tmp_path, ordered=False, rank=1, world_size=2) as loader:
        handed_out = [numbers_of(batch) for batch in islice(loader, 2)]
    assert handed_out == [[1, 3, 5, 7], [9, 11, 13, 15]]
    stream = tmp_path / "rank-00001-of-00002" / "stream.json"
    assert '"ordered":false' in stream.read_text()


def test_a_loader_that_is_closed_and_goes_on(tmp_path: Path) -> None:
    loader = new(tmp_path)
    for _ in range(2):
        next(iter(loader))
        loader.close()
    assert recorded(tmp_path)[0] == list(range(8))


def test_what_cannot_be_recorded_is_not_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writer, "capacity_of", None)  # A TypeError in the thread.
    loader = new(sf.RecordOptions(tmp_path, buffer_bytes=1))
    batches = iter(loader)
    with pytest.raises(SoftsError, match=r"recording .* ends after 0 samples"):
        for _ in batches:
            pass
    n_handed_out = loader.state_dict()["positions"]["0"]
    monkeypatch.undo()
    loader.close()
    # The next iterator goes on there.
    monkeypatch.setattr(endless, "Client", NumberedClient)
    with loader:
        assert numbers_of(next(iter(loader)))[0] == n_handed_out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_size": None}, "record needs batches of tensors by name"),
        ({"collate_fn": list}, "record needs batches of tensors by name"),
        ({"folder": 5}, "record must be the path of a folder or RecordOptions, got 5"),
    ],
)
def test_loaders_that_cannot_record(tmp_path: Path, arguments: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        new(**{"folder": tmp_path, **arguments})


def test_another_product_needs_another_folder(tmp_path: Path) -> None:
    with new(tmp_path) as loader:
        batches = iter(loader)
        next(batches)
        loader.set_model("1")
        with pytest.raises(ConfigError, match="is of product '0', and the loader went to '1'"):
            next(batches)
    assert recorded(tmp_path)[0] == list(range(4))


def test_batches_on_a_device_are_recorded_from_the_host() -> None:
    class Reader:
        n_rows, is_starved = 1, False

        def begin(self, product_id: str) -> None: ...
        def forget(self) -> None: ...
        def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
            return 1

        def take(self) -> Any:
            return next(items)

    items: Iterator[Any] = iter([{"x": torch.ones(1)}, {"x": torch.zeros(1)}])
    on_device = TransferReader(Reader(), Transfer(torch.device("meta")), keeps_source=True)
    on_device.fill("0", 0, 0)
    assert on_device.take()["x"].is_meta
    on_device.begin("0")
    assert on_device.source["x"].tolist() == [1]
