"""The dataset's own decisions, against a client that does as it is told."""

import copy
import gc
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted_client import CONFIG, SAMPLE, ScriptedClient

import softs_fast
from softs_fast import ConfigError, NoSupplier, SoftDataLoader, SoftIterableDataset
from softs_fast.loader import endless as iterable_dataset
from softs_fast.loader import wait_policy
from softs_fast.loader.plan import IterationPlan


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedClient]:
    """The clients that the dataset opens."""
    clients: list[ScriptedClient] = []
    monkeypatch.setattr(ScriptedClient, "opened", clients)
    monkeypatch.setattr(iterable_dataset, "Client", ScriptedClient)
    return clients


def new(**arguments: Any) -> SoftIterableDataset:
    return SoftIterableDataset("a", "ipc:///unused", CONFIG, softs_fast.ShmMedium, **arguments)


def test_yields_tensors_and_releases_each_slot(opened: list[ScriptedClient]) -> None:
    samples = iter(new())
    for _ in range(3):
        sample = next(samples)
        assert sample["x"].tolist() == [1, 1]
        assert opened[0].held == []
    assert {product for product, _ in opened[0].requests} == {"a"}


def test_a_sample_that_arrives_after_the_switch_is_dropped(opened: list[ScriptedClient]) -> None:
    data = new()
    samples = iter(data)
    next(samples)

    def switch_while_waiting() -> Iterator[int | None]:
        data.set_model("b")
        yield 5
        yield 6

    opened[0].answers = switch_while_waiting()
    next(samples)
    assert [product for product, _ in opened[0].requests] == ["a", "a", "b"]
    assert opened[0].followed == ["a", "b"]
    assert opened[0].held == []


def test_a_switch_while_decoding_drops_the_sample(opened: list[ScriptedClient]) -> None:
    data = new()
    samples = iter(data)
    next(samples)

    def read(slot_id: int) -> bytes:
        data.set_model("b")
        return SAMPLE

    opened[0].medium.read = read
    next(samples)
    assert [product for product, _ in opened[0].requests] == ["a", "a", "b"]


def test_the_client_follows_once_per_switch(opened: list[ScriptedClient]) -> None:
    data = new()
    samples = iter(data)
    next(samples)
    data.set_model("a")
    next(samples)
    assert opened[0].followed == ["a"]
    data.set_model("b")
    assert opened[0].followed == ["a", "b"], "the caller of set_model does it"
    next(samples)
    next(samples)
    assert opened[0].followed == ["a", "b"]


def test_a_sample_that_cannot_be_decoded_frees_its_slot(opened: list[ScriptedClient]) -> None:
    samples = iter(new())
    next(samples)
    opened[0].data = SAMPLE[1:]
    with pytest.raises(ConfigError, match="Data length 15 != expected 16"):
        next(samples)
    assert opened[0].held == []


def test_a_worker_that_fails_closes_its_client_and_goes_on_with_another(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SimpleNamespace(id=1, num_workers=3, dataset=None)
    monkeypatch.setattr(iterable_dataset, "get_worker_info", lambda: worker)
    samples = iter(new())
    next(samples)
    opened[0].data = b""
    opened[0].n_numbered = 5
    with pytest.raises(ConfigError):
        next(samples)
    assert opened[0].closed == 1
    assert next(samples)["y"] == 1
    assert [client.options["share"] for client in opened] == [(1, 3), (1 + 5 * 3, 3)], "no number comes again"


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wait_policy, "time", clock)
    return clock


def test_timeout_raises_the_diagnosis(opened: list[ScriptedClient], clock: Clock) -> None:
    data = new(request_timeout=0.15, retry_delay=0.0)
    samples = iter(data)
    next(samples)

    def nothing() -> Iterator[int | None]:
        while True:
            clock.sleep(0.02)
            yield None

    opened[0].answers = nothing()
    with pytest.raises(NoSupplier, match=r"^a 0\.") as raised:
        next(samples)
    assert float(str(raised.value).split()[1]) >= 0.15
    waits = [timeout_ms for _, timeout_ms in opened[0].requests]
    assert all(1 <= wait <= 100 for wait in waits)
    assert waits[-1] < waits[0], "the last wait ends with the timeout"
    opened[0].answers = None
    assert next(samples)["y"] == 1, "an exception does not end the iterator"
    assert next(iter(data))["y"] == 1
    assert len(opened) == 1


def test_the_time_that_the_student_takes_does_not_count(opened: list[ScriptedClient], clock: Clock) -> None:
    samples = iter(new(request_timeout=0.2, retry_delay=0.0))
    next(samples)
    clock.sleep(0.25)
    opened[0].answers = iter([None, 0])
    assert next(samples)["y"] == 1


def test_without_a_timeout_it_waits_on(opened: list[ScriptedClient]) -> None:
    samples = iter(new(request_timeout=None, retry_delay=0.0))
    next(samples)
    opened[0].answers = iter([None] * 50 + [0])
    next(samples)
    assert len(opened[0].requests) == 52


def test_retry_delay_keeps_from_spinning(opened: list[ScriptedClient]) -> None:
    samples = iter(new(retry_delay=0.05))
    next(samples)
    opened[0].answers = iter([None, None, None, 0])
    started = time.monotonic()
    next(samples)
    assert time.monotonic() - started >= 0.15


def test_close_and_garbage(opened: list[ScriptedClient]) -> None:
    data = new()
    samples = iter(data)
    next(samples)
    data.close()
    data.close()
    assert opened[0].closed == 1
    opened[0].n_numbered = 7
    next(iter(data))
    assert len(opened) == 2
    del data, samples
    gc.collect()
    assert [client.closed for client in opened] == [1, 1]


def test_a_client_is_not_used_after_fork(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = new()
    next(iter(data))
    inherited = data._open
    monkeypatch.setattr(iterable_dataset, "os", SimpleNamespace(getpid=lambda: -1))
    data.close()
    assert opened[0].closed == 0, "it belongs to the parent"
    data._open = inherited
    next(iter(data))
    assert len(opened) == 2
    assert len(opened[0].requests) == 1


def test_a_worker_stops_when_its_trainer_died(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = iter(new(retry_delay=0.0))
    next(samples)
    alive = True
    monkeypatch.setattr(wait_policy, "get_worker_info", lambda: object())
    monkeypatch.setattr(
        wait_policy.multiprocessing, "parent_process", lambda: SimpleNamespace(is_alive=lambda: alive)
    )
    opened[0].answers = iter([None, 0, None, 0])
    next(samples)
    alive = False
    with pytest.raises(StopIteration):
        next(samples)


@pytest.mark.parametrize("first_wait_ms", [1, 100])
def test_a_wait_that_cannot_be_ended_polls_often(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch, first_wait_ms: int
) -> None:
    data = new(request_timeout=None)
    data._first_wait_ms = first_wait_ms
    samples = iter(data)
    now = 0.0

    def wait() -> Iterator[int | None]:
        nonlocal now
        yield 0
        while now < 2:
            now += opened[0].requests[-1][1] / 1000
            yield None
        yield 0

    monkeypatch.setattr(wait_policy, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda s: None))
    data_client = ScriptedClient.__init__

    def scripted(self: ScriptedClient, *args: Any, **options: Any) -> None:
        data_client(self, *args, **options)
        self.answers = wait()

    monkeypatch.setattr(ScriptedClient, "__init__", scripted)
    next(samples)
    next(samples)
    waits = [timeout_ms for _, timeout_ms in opened[0].requests[1:]]
    assert waits[0] == first_wait_ms
    assert waits[-1] == 100, "a long wait polls seldom"
    waited = 0
    for wait_ms in waits:
        assert wait_ms <= max(first_wait_ms, waited / 8)
        waited += wait_ms


FIRST = ("a", "ipc:///unused", CONFIG, softs_fast.ShmMedium)


def test_loader_passes_the_rest_to_torch(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3, num_workers=0)
    assert loader.dataset is loader.soft_dataset
    batch = next(iter(loader))
    assert batch["x"].shape == (3, 2)
    loader.set_model("b")
    assert loader.model_id == loader.soft_dataset.model_id == "b"


def switch_with_the_second(loader: SoftDataLoader, client: ScriptedClient) -> None:
    """Have samples be numbered from 10, and the product change while the second of them is read."""
    numbers = iter(range(10, 20))

    def read(slot_id: int) -> bytes:
        number = next(numbers)
        if number == 11:
            loader.set_model("b")
        return CONFIG.encode(x=torch.full((2,), float(number)), y=torch.tensor(number))

    client.medium.read = read


def test_a_switch_in_the_middle_of_a_batch(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3)
    batches = iter(loader)
    next(batches)
    switch_with_the_second(loader, opened[0])
    batch = next(batches)
    assert batch["y"].tolist() == [12, 13, 14], "what came before the switch, and with it, is dropped"
    assert batch["x"].tolist() == [[12, 12], [13, 13], [14, 14]]
    assert [product for product, _ in opened[0].requests[-5:]] == ["a", "a", "b", "b", "b"]
    assert opened[0].followed == ["a", "b"]
    assert opened[0].held == []


def test_a_switch_with_the_last_row_of_a_batch(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=2)
    batches = iter(loader)
    next(batches)
    switch_with_the_second(loader, opened[0])
    assert next(batches)["y"].tolist() == [12, 13]
    loader.set_model("c")
    next(batches)
    assert {product for product, _ in opened[0].requests[-2:]} == {"c"}


def test_a_row_that_cannot_be_read_frees_its_slot(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3)
    batches = iter(loader)
    kept = next(batches)
    opened[0].data = SAMPLE + b"."
    with pytest.raises(ConfigError, match="Data length 17 != expected 16"):
        next(batches)
    assert opened[0].held == []
    opened[0].data = SAMPLE
    assert next(iter(loader))["y"].tolist() == kept["y"].tolist() == [1, 1, 1]


def test_a_worker_without_a_trainer_ends(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3, retry_delay=0.0)
    batches = iter(loader)
    next(batches)
    monkeypatch.setattr(wait_policy, "_trainer_exited", lambda: True)
    opened[0].answers = iter([0, 0, None])
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


def _first_sample_elsewhere(data: SoftIterableDataset, answers: Any) -> None:
    answers.put((data.model_id, data._open is None))
    data.set_model("from the child")


@pytest.mark.parametrize("make_copy", [pickle.dumps, copy.deepcopy])
def test_what_cannot_be_pickled_says_so(opened: list[ScriptedClient], make_copy: Any) -> None:
    for data in (new(), SoftDataLoader(*FIRST)):
        with pytest.raises(ConfigError, match="cannot be pickled or copied"):
            make_copy(data)


def test_a_shallow_copy_shares_the_model_id_and_not_the_client(opened: list[ScriptedClient]) -> None:
    data = new()
    next(iter(data))
    other = copy.copy(data)
    next(iter(other))
    data.set_model("b")
    assert other.model_id == "b"
    assert len(opened) == 2
    other.close()
    assert [client.closed for client in opened] == [0, 1]


def test_a_process_that_is_no_fork_shares_the_model_id_and_not_the_client(
    opened: list[ScriptedClient],
) -> None:
    data = new()
    next(iter(data))
    context = multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    child = context.Process(target=_first_sample_elsewhere, args=(data, answers))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert answers.get() == ("a", True)
    answers.close()
    assert data.model_id == "from the child"
    assert data._open is not None
    assert data._open.client is opened[0]  # type: ignore[comparison-overlap]


def test_a_worker_process_closes_its_client(opened: list[ScriptedClient]) -> None:
    data = new()
    context = multiprocessing.get_context("fork")
    reader, writer = os.pipe()

    def work() -> None:
        ScriptedClient.close = lambda self: os.write(writer, b"closed")  # type: ignore[method-assign, assignment, return-value]
        next(iter(data))
        globals()["kept"] = data

    child = context.Process(target=work)
    child.start()
    child.join()
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"closed"


def test_the_iterator_of_a_loader_is_that_of_torch(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3, generator=torch.Generator().manual_seed(1))
    other = torch.utils.data.DataLoader(new(), batch_size=3, generator=torch.Generator().manual_seed(1))
    batches, expected = iter(loader), iter(other)
    assert iter(batches) is batches
    assert loader.generator.get_state().equal(other.generator.get_state()), "it has drawn as many numbers"
    for endless in (batches, expected):
        with pytest.raises(TypeError):
            len(endless)  # type: ignore[arg-type]
    for name, tensor in next(batches).items():
        assert tensor.equal(next(expected)[name])


def test_what_is_asked_of_the_client(opened: list[ScriptedClient]) -> None:
    data = new(num_slots=7, ordered=True, prefetch=3, debug=True)
    assert (data.ordered, data.prefetch, data.debug, data.zero_copy) == (True, 3, True, False)
    data._open_client(IterationPlan())
    assert opened[0].options == {
        "ordered": True,
        "prefetch": 3,
        "block": 1,
        "share": (0, 1),
        "scribble": True,
        "ragged": None,
    }
