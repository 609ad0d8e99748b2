"""`state_dict` and `load_state_dict`: a stream goes on with the sample after the last one that was handed out."""

import copy
import pickle
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from softs_fast import ConfigError, ShmMedium, SoftDataLoader, SoftIterableDataset
from softs_fast.loader import endless as iterable_dataset
from softs_fast.loader.endless import _MAX_POSITION

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
# torchdata calls what torch 2.15 warns about.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]

FIRST = ("0", "ipc:///unused", CONFIG, ShmMedium)


@pytest.fixture(autouse=True)
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)


def new(**arguments: Any) -> SoftDataLoader:
    return SoftDataLoader(*FIRST, **{"num_slots": 64, "batch_size": 4, "ordered": True, **arguments})


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("n_before", [0, 1, 5])
@pytest.mark.parametrize("context", [None, "fork"])
def test_a_loader_goes_on_exactly(zero_copy: bool, n_before: int, context: str | None) -> None:
    workers = {"num_workers": 2 if context else 0, "multiprocessing_context": context}
    first, second = new(zero_copy=zero_copy, **workers), new(zero_copy=zero_copy)
    batches = iter(first)
    for _ in range(n_before):
        next(batches)
    state = pickle.loads(pickle.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.state_dict() == state
    for batch, expected in islice(zip(second, batches, strict=True), 10):
        assert numbers_of(batch) == numbers_of(expected)


def test_a_state_is_a_copy_and_the_iterator_that_lives_is_left_alone() -> None:
    data = new()
    batches = iter(data)
    next(batches)
    state = data.state_dict()
    next(batches)
    assert state == {"positions": {"0": 4}}
    data.load_state_dict(state)
    assert numbers_of(next(batches)) == [8, 9, 10, 11]
    assert numbers_of(next(iter(data))) == [4, 5, 6, 7]
    assert state == {"positions": {"0": 4}}


def test_products_are_resumed_each_at_its_place() -> None:
    later = new()
    later.load_state_dict({"positions": {"0": 8, "1": 20}})
    batches = iter(later)
    assert numbers_of(next(batches))[0] == 8
    later.set_model("1")
    assert numbers_of(next(batches), 1)[0] == 20


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("n_before", [1, 5])
def test_stateful_data_loader(zero_copy: bool, num_workers: int, n_before: int) -> None:
    def stateful() -> Any:
        data = new(zero_copy=zero_copy).soft_dataset
        return StatefulDataLoader(
            data,
            batch_size=4,
            num_workers=num_workers,
            multiprocessing_context="fork" if num_workers else None,
        )

    first = stateful()
    batches = iter(first)
    numbers = [numbers_of(next(batches)) for _ in range(n_before)]
    assert numbers == [list(range(4 * i, 4 * i + 4)) for i in range(n_before)]
    state = copy.deepcopy(first.state_dict())
    del batches
    first.dataset.close()
    second = stateful()
    second.load_state_dict(state)
    numbers = [numbers_of(batch) for batch in islice(second, 7)]
    assert numbers == [list(range(4 * i, 4 * i + 4)) for i in range(n_before, n_before + 7)]
    second.dataset.close()


def test_a_position_of_the_trainer_is_not_that_of_its_workers() -> None:
    data = SoftIterableDataset(*FIRST, ordered=True)
    data.load_state_dict({"positions": {"0": 100}})
    workers = torch.utils.data.DataLoader(data, 2, num_workers=2, multiprocessing_context="fork")
    assert [sorted(numbers_of(batch)) for batch in islice(workers, 2)] == [[0, 2], [1, 3]]
    assert data.state_dict() == {"positions": {"0": 100}}


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        [],
        {"positions": [1]},
        {"positions": {"0": -1}},
        {"positions": {"0": 1.0}},
        {"positions": {"0": True}},
        {"positions": {0: 1}},
        {"positions": {"0": _MAX_POSITION}},
        {"positions": {str(i): 0 for i in range(65)}},
    ],
)
def test_what_is_no_state(state: Any) -> None:
    data = new()
    with pytest.raises(ConfigError, match="the state is none of a SoftIterableDataset"):
        data.load_state_dict(state)
    assert data.state_dict() == {"positions": {}}


@pytest.mark.parametrize("workers", [0, 2])
def test_without_order_a_stream_goes_on_with_new_samples(workers: int) -> None:
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    first, second = new(ordered=False, **options), new(ordered=False, **options)
    seen = {number for batch in islice(first, 5) for number in numbers_of(batch)}
    state = pickle.loads(pickle.dumps(first.state_dict()))
    assert state["positions"] == {"0": 20}
    with pytest.warns(UserWarning, match="samples come in no order.*use ordered=True"):
        second.load_state_dict(state)
    later = {number for batch in islice(second, 5) for number in numbers_of(batch)}
    assert min(later) > max(seen)
    assert second.state_dict()["numbered"] >= len(seen | later) == 40


def test_a_state_in_the_midst_of_an_epoch_completes_it() -> None:
    first, second = new(steps_per_epoch=3), new(steps_per_epoch=3)
    batches = iter(first)
    numbers = [numbers_of(next(batches))[0] for _ in range(2)]
    state = first.state_dict()
    assert state == {"positions": {"0": 8}, "batches": 2}
    second.load_state_dict(state)
    iter(second)  # trainers make iterators that they do not use
    assert second.state_dict() == state
    numbers += [[numbers_of(batch)[0] for batch in second] for _ in range(2)]
    assert numbers == [0, 4, [8], [12, 16, 20]]
    assert second.state_dict() == {"positions": {"0": 24}}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_stops_several_times_in_an_epoch(workers: int) -> None:
    """Later stops count the batches before earlier ones, and later epochs are whole."""
    state, numbers = None, []
    for n_batches in (2, 1, 2, 5):
        options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        data = new(steps_per_epoch=5, persistent_workers=workers > 0, **options)
        if state is not None:
            data.load_state_dict(state)
        numbers += [numbers_of(batch)[0] for batch in islice(data, n_batches)]
        state = data.state_dict()
        data.soft_dataset.close()
    assert numbers == list(range(0, 40, 4))
    assert state == {"positions": {"0": 40}}


def test_an_epoch_of_a_run_that_resumes_needs_the_state() -> None:
    data, unordered = new(steps_per_epoch=3), new(steps_per_epoch=3, ordered=False)
    unordered.set_epoch(1)
    data.set_epoch(0)
    with pytest.raises(ConfigError, match=r"epoch 1 would begin with the first sample.*load_state_dict"):
        data.set_epoch(1)
    data.load_state_dict({"positions": {"0": 12}})
    data.set_epoch(1)
    assert numbers_of(next(iter(data)))[0] == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_no_other_loader_is_made_of_an_order_or_an_epoch(workers: int) -> None:
    kinds: tuple[dict[str, Any], ...] = ({}, {"steps_per_epoch": 3}, {"steps_per_epoch": 3, "ordered": False})
    # torch takes seconds to end workers of which one has raised.
    for options in kinds[:1] if workers else kinds:
        data = new(**options)
        other = DataLoader(data.dataset, batch_size=4, num_workers=workers)
        with pytest.raises(ConfigError, match=r"ignore_data_skip=True.*load_state_dict"):
            next(iter(other))
        assert data.dataset.ordered == data.soft_dataset.ordered


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("as_batches", [False, True])
@pytest.mark.parametrize("look", range(2, 10, 2))
def test_nothing_is_lost_where_the_model_is_the_same_again_at_the_next_check(
    zero_copy: bool, as_batches: bool, look: int
) -> None:
    looks = iter(range(1, 1000))
    loader = new(zero_copy=zero_copy)
    data: Any = loader.soft_dataset
    read, version = data.source.read, data.source.version

    def look_at_version() -> int:
        n = next(looks)
        if n in (look, look + 1):
            data._shared_model_id.write("1" if n == look else "0")
        return version()

    data.source = SimpleNamespace(read=read, version=look_at_version)
    if as_batches:
        numbers = [number for batch in islice(loader, 4) for number in numbers_of(batch)]
    else:
        numbers = [int(sample["y"]) for sample in islice(data, 16)]
    assert numbers == [*range(16)]
