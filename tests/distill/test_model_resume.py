"""The state of a stream is that of a model: another run gives its generations other numbers."""

import ctypes
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from samples import CONFIG, check
from school import School
from torch.utils.data import DataLoader

from softs_fast import ConfigError, DistillDataLoader, DistillIterableDataset, StudentClient

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

B = 4


@contextmanager
def run_of(folder: Path) -> Iterator[tuple[StudentClient, DistillIterableDataset]]:
    """A training: a broker that counts from generation 1, a worker, a student and its dataset."""
    with ExitStack() as stack:
        school = School(folder, stack)
        student = school.begun()
        student.hello()
        data = DistillIterableDataset(0, student.generation_value, 16, CONFIG, school.frontend, ordered=True)
        stack.callback(data.close)
        yield student, data


def sequences(batches: Any, n_batches: int) -> list[int]:
    return [n for batch in islice(batches, n_batches) for n in batch["sequence"].tolist()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_model_goes_on_in_another_run_whichever_generation_it_is(
    short_path: Path, num_workers: int
) -> None:
    model: tuple[str, dict[str, Any]] = ("1", {"width": 8})
    with run_of(short_path) as (student, data):
        student.set_model("7")
        next(iter(data))
        student.set_model(*model)
        workers = {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}
        loader = DistillDataLoader(data, batch_size=B, **workers)
        batches = iter(loader)
        assert sequences(batches, 5) == list(range(5 * B))
        state = json.loads(json.dumps(loader.state_dict()))
        assert list(state["positions"].values()) == [5 * B]
        del batches
    with run_of(short_path) as (student, data):
        loader = DistillDataLoader(data, batch_size=B)
        student.set_model("7")
        student.set_model("1", {"width": 9})
        assert student.generation == 2, "as the model of the state"
        with pytest.raises(ConfigError, match=r"of another model than generation 2.*set that model before"):
            loader.load_state_dict(state)
        assert sequences(loader, 2) == list(range(2 * B))
        student.set_model(*model)
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        batches = iter(loader)
        batch = next(batches)
        assert batch["sequence"].tolist() == list(range(5 * B, 6 * B))
        assert check({name: tensor[0] for name, tensor in batch.items()}) == 1
        student.set_model(*model)
        assert sequences(batches, 1) == list(range(B)), "each use of set_model begins at 0"
        del batches


def test_without_the_model_a_state_is_refused(short_path: Path) -> None:
    with run_of(short_path) as (student, data):
        student.set_model("1")
        next(iter(data))
        state = data.state_dict()
    with run_of(short_path) as (student, data):
        assert data.state_dict() == {"positions": {}}
        data.load_state_dict({"positions": {}})
        with pytest.raises(ConfigError, match="of another model than generation 0"):
            data.load_state_dict(state)
        with pytest.raises(ConfigError, match="the state is none of"):
            data.load_state_dict({"model": "1"})
        own = DistillIterableDataset(0, ctypes.c_longlong(1), 4, CONFIG, data.endpoint, ordered=True)
        with pytest.raises(ConfigError, match=r"c_long.* does not name the model"):
            own.load_state_dict(state)


def test_workers_of_torch_have_states_of_models_too(short_path: Path) -> None:
    with run_of(short_path) as (student, data):
        student.set_model("1")
        batches = iter(DataLoader(Reports(data), None, num_workers=1, multiprocessing_context="fork"))
        first, second = (next(batches) for _ in range(2))
        assert list(first.values()) == [1]
        assert list(second.values()) == [2]
        assert first.keys() == second.keys()
        next(iter(data))
        assert data.state_dict()["positions"].keys() == first.keys()
        del batches


class Reports(DistillIterableDataset):
    """Yields the positions after each sample."""

    def __init__(self, data: DistillIterableDataset) -> None:
        self.__dict__ = data.__dict__

    def __iter__(self) -> Iterator[Any]:
        for _ in super().__iter__():
            yield self.state_dict()["positions"]
