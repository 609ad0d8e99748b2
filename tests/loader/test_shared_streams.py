"""Several iterators of one ordered stream, in one thread or in many: each sample goes to exactly one of them."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from numbered_client import CONFIG, NumberedClient, numbers_of
from served import served
from side_by_side import in_threads
from waiting import WATCHDOG_S

import softs_fast as sf
from softs_fast.loader import endless as iterable_dataset
from softs_fast.loader import sample_iterator as stream

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

KINDS = pytest.mark.parametrize("zero_copy", [False, True], ids=["gathered", "zero_copy"])
#: How long to wait for what must not happen.
LONG_ENOUGH_S = 0.2


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets open clients that number their samples."""
    monkeypatch.setattr(iterable_dataset, "Client", NumberedClient)


def loader(**arguments: Any) -> sf.SoftDataLoader:
    arguments = {"num_slots": 64, "batch_size": 4, "ordered": True, **arguments}
    return sf.SoftDataLoader("0", "ipc:///unused", CONFIG, sf.ShmMedium, **arguments)


def next_of(iterator: Any) -> list[int]:
    """The numbers of the next batch, or of the next sample."""
    item = next(iterator)
    return numbers_of(item if item["y"].ndim else {name: tensor[None] for name, tensor in item.items()})


@pytest.mark.parametrize("single", [False, True], ids=["batches", "samples"])
@KINDS
def test_iterators_take_turns(numbered: None, zero_copy: bool, single: bool) -> None:
    data = loader(zero_copy=zero_copy)
    source: Any = data.soft_dataset if single else data
    first, second = iter(source), iter(source)
    numbers = [number for one in (first, second, second, first, second) * 4 for number in next_of(one)]
    assert numbers == list(range(len(numbers)))
    assert data.state_dict() == {"positions": {"0": len(numbers)}}
    assert data.soft_dataset._open_client(data._plan).client.seeks == []  # type: ignore[attr-defined]


@KINDS
def test_samples_and_batches_in_turns(numbered: None, zero_copy: bool) -> None:
    data = loader(zero_copy=zero_copy)
    batches, samples = iter(data), iter(data.soft_dataset)
    numbers = [number for one in (batches, samples, samples, batches) * 4 for number in next_of(one)]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("single", [False, True], ids=["batches", "samples"])
@KINDS
def test_what_was_taken_of_another_model_is_not_handed_out(
    numbered: None, zero_copy: bool, single: bool
) -> None:
    data = loader(zero_copy=zero_copy)
    source: Any = data.soft_dataset if single else data
    first, second = iter(source), iter(source)
    n = 1 if single else 4
    assert [*next_of(first), *next_of(second)] == list(range(2 * n))
    data.set_model("1")
    assert next(first)["x"].reshape(-1, 2)[0].tolist() == [0, 1]
    data.set_model("0")
    assert next_of(second) == list(range(2 * n, 3 * n))
    assert next_of(first) == list(range(3 * n, 4 * n))


@KINDS
def test_an_iterator_with_a_loaded_state_has_a_count_of_its_own(numbered: None, zero_copy: bool) -> None:
    data = loader(zero_copy=zero_copy).soft_dataset
    old = iter(data)
    assert [next_of(old), next_of(old)] == [[0], [1]]
    data.load_state_dict({"positions": {"0": 40}})
    new = iter(data)
    assert [next_of(one)[0] for one in (new, old, new, new, old)] == [40, 2, 41, 42, 3]
    assert data.state_dict() == {"positions": {"0": 43}}


@pytest.mark.parametrize("single", [False, True], ids=["batches", "samples"])
@KINDS
def test_an_iterator_begins_while_another_one_takes_samples(
    numbered: None, zero_copy: bool, single: bool
) -> None:
    data = loader(zero_copy=zero_copy)
    source: Any = data.soft_dataset if single else data
    client = data.soft_dataset._open_client(data._plan).client
    found: list[list[int]] = []
    other = threading.Thread(target=lambda: found.append(next_of(iter(source))))
    calls = count()

    def begin_the_other() -> None:
        if next(calls) == 1:
            other.start()
            other.join(LONG_ENOUGH_S)

    client.before_each = begin_the_other  # type: ignore[attr-defined]
    mine = iter(source)
    found.append(next_of(mine))
    if single and not zero_copy:
        found.append(next_of(mine))
    other.join()
    numbers = sorted(number for numbers in found for number in numbers)
    assert numbers == list(range(len(numbers)))
    assert data.state_dict() == {"positions": {"0": len(numbers)}}


def test_threads_that_begin_at_once_open_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[NumberedClient] = []
    two = threading.Event()

    class Slow(NumberedClient):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)
            if len(opened) > 1:
                two.set()
            two.wait(LONG_ENOUGH_S)

    monkeypatch.setattr(iterable_dataset, "Client", Slow)
    data = loader()
    in_threads(lambda _: next(iter(data)), range(3))
    assert len(opened) == 1
    assert data.state_dict() == {"positions": {"0": 12}}


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not(numbered: None) -> None:
    data = loader()
    batches = iter(data)
    next(batches)
    assert exit_status_of_fork(data, lambda: next(iter(data))) == 0


def exit_status_of_fork(data: sf.SoftDataLoader, act: Callable[[], object]) -> int | None:
    """Fork while another thread holds all locks of a loader, and do something there; None or negative if it does not end."""
    held, done = threading.Event(), threading.Event()
    dataset = data.soft_dataset
    assert dataset._open is not None
    locks = (dataset._lock(), dataset._open.lock.lock, dataset._open.subscription._lock)

    def hold() -> None:
        with locks[0], locks[1], locks[2]:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = multiprocessing.get_context("fork").Process(target=act)
    child.start()
    child.join(WATCHDOG_S)
    done.set()
    holder.join()
    child.kill()
    child.join()
    return child.exitcode


REAL = sf.make_xy_config((8192,), "float64", (), "int64")


def generate(product_id: str, sequence: int) -> bytes:
    return REAL.encode(x=torch.full((8192,), float(sequence), dtype=torch.float64), y=torch.tensor(sequence))


@pytest.fixture
def market(frontend: str, backend: str) -> Iterator[str]:
    with served(frontend, backend, generate, ["m"], sf.ShmMedium, REAL.nbytes()):
        yield frontend


@pytest.fixture
def new(market: str) -> Callable[..., sf.SoftDataLoader]:
    def make(**arguments: Any) -> sf.SoftDataLoader:
        arguments = {"num_slots": 32, "batch_size": 4, "ordered": True, **arguments}
        return sf.SoftDataLoader("m", market, REAL, sf.ShmMedium, **arguments)

    return make


@pytest.mark.parametrize("zero_copy", [False, True])
def test_an_inherited_iterator_raises_whichever_held_the_lock(
    new: Callable[..., sf.SoftDataLoader], zero_copy: bool
) -> None:
    data = new(zero_copy=zero_copy)
    batches = iter(data)
    next(batches)

    def use() -> None:
        with pytest.raises(sf.ForkedError):
            next(batches)

    assert exit_status_of_fork(data, use) == 0


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("options", [{}, {"zero_copy": True}, {"num_workers": 3}])
def test_threads_share_a_stream(
    new: Callable[..., sf.SoftDataLoader], options: Any, is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_BUSY_S", 0.0 if is_busy else 1e9)
    data = new(**options)
    n_batches = 100
    seen: list[list[int]] = []

    def take(_: int) -> None:
        batches = iter(data)
        for _ in range(n_batches):
            batch = next(batches)
            numbers = batch["y"].tolist()
            assert batch["x"][:, 0].tolist() == batch["x"][:, -1].tolist() == numbers
            seen.append(numbers)

    in_threads(take, range(3))
    assert sorted(seen) == [list(range(4 * i, 4 * i + 4)) for i in range(3 * n_batches)]
    assert data.state_dict() == {"positions": {"m": 12 * n_batches}}


def test_what_one_iterator_has_copied_ahead_goes_to_the_next(
    new: Callable[..., sf.SoftDataLoader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_BUSY_S", 0.0)
    data = new()
    first, second = iter(data), iter(data)
    for i, one in enumerate((first, first, second, second, first) * 4):
        assert next(one)["y"].tolist() == list(range(4 * i, 4 * i + 4))
