"""The dataset's own decisions, against a client that does as it is told."""

import gc
import multiprocessing
import multiprocessing.util
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import softs_fast
from softs_fast import (
    ConfigError,
    HelloError,
    NoSupplier,
    SoftDataLoader,
    SoftIterableDataset,
    TensorSpec,
    dataset,
)
from softs_fast.dataset import Batch, make_collate_fn

CONFIG = softs_fast.make_xy_config((2,), "float32", (), "int64")
SAMPLE = CONFIG.encode(x=torch.ones(2), y=torch.tensor(1))


class ScriptedClient:
    """Hands out slot 0 for ever, or whatever `answers` says; records what it is asked."""

    opened: list["ScriptedClient"] = []  # noqa: RUF012, replaced for each test
    hello_fails = False

    def __init__(self, endpoint: str, medium_cls: Any, slot_size: int, num_slots: int) -> None:
        assert slot_size == CONFIG.nbytes()
        self.medium = SimpleNamespace(read=lambda slot_id: self.data)
        self.data = SAMPLE
        self.answers: Iterator[int | None] | None = None
        self.requests: list[tuple[str, int]] = []
        self.held: list[int] = []
        self.discards = 0
        self.closed = 0
        self.opened.append(self)

    def hello(self) -> None:
        if self.hello_fails:
            raise HelloError("HELLO failed: timeout")

    def request_sample(self, product_id: str, timeout_ms: int) -> int | None:
        self.requests.append((product_id, timeout_ms))
        slot_id = 0 if self.answers is None else next(self.answers)
        if slot_id is not None:
            self.held.append(slot_id)
        return slot_id

    def release_slot(self, slot_id: int) -> None:
        self.held.remove(slot_id)

    def discard(self) -> int:
        self.discards += 1
        return 0

    def diagnose(self, product_id: str, waited_s: float) -> NoSupplier:
        return NoSupplier(f"{product_id} {waited_s}")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedClient]:
    """The clients that the dataset opens."""
    clients: list[ScriptedClient] = []
    monkeypatch.setattr(ScriptedClient, "opened", clients)
    monkeypatch.setattr(ScriptedClient, "hello_fails", False)
    monkeypatch.setattr(dataset, "Client", ScriptedClient)
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
    assert opened[0].discards == 1
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


def test_the_model_is_discarded_once_per_switch(opened: list[ScriptedClient]) -> None:
    data = new()
    samples = iter(data)
    next(samples)
    assert opened[0].discards == 0
    data.set_model("a")
    next(samples)
    assert opened[0].discards == 0
    data.set_model("b")
    next(samples)
    next(samples)
    assert opened[0].discards == 1


def test_a_sample_that_cannot_be_decoded_frees_its_slot(opened: list[ScriptedClient]) -> None:
    samples = iter(new())
    next(samples)
    opened[0].data = SAMPLE[1:]
    with pytest.raises(ConfigError, match="Data length 15 != expected 16"):
        next(samples)
    assert opened[0].held == []


def test_a_worker_that_fails_closes_its_client(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = iter(new())
    next(samples)
    monkeypatch.setattr(dataset, "get_worker_info", lambda: object())
    opened[0].data = b""
    with pytest.raises(ConfigError):
        next(samples)
    assert opened[0].closed == 1


def test_timeout_raises_the_diagnosis(opened: list[ScriptedClient]) -> None:
    data = new(request_timeout=0.15, retry_delay=0.0)
    samples = iter(data)
    next(samples)

    def nothing() -> Iterator[int | None]:
        while True:
            time.sleep(0.02)
            yield None

    opened[0].answers = nothing()
    with pytest.raises(NoSupplier, match=r"^a 0\.") as raised:
        next(samples)
    assert float(str(raised.value).split()[1]) >= 0.15
    waits = [timeout_ms for _, timeout_ms in opened[0].requests]
    assert all(1 <= wait <= 100 for wait in waits)
    assert waits[-1] < waits[0], "the last wait ends with the timeout"
    opened[0].answers = None
    assert next(iter(data))["y"] == 1
    assert len(opened) == 1


def test_the_time_that_the_student_takes_does_not_count(opened: list[ScriptedClient]) -> None:
    samples = iter(new(request_timeout=0.2, retry_delay=0.0))
    next(samples)
    time.sleep(0.25)
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


def test_a_failed_hello_leaves_no_client(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = new()
    monkeypatch.setattr(ScriptedClient, "hello_fails", True)
    with pytest.raises(HelloError):
        next(iter(data))
    assert opened[0].closed == 1
    monkeypatch.setattr(ScriptedClient, "hello_fails", False)
    next(iter(data))
    assert len(opened) == 2


def test_close_and_garbage(opened: list[ScriptedClient]) -> None:
    data = new()
    samples = iter(data)
    next(samples)
    data.close()
    data.close()
    assert opened[0].closed == 1
    next(iter(data))
    assert len(opened) == 2
    samples.close()  # type: ignore[attr-defined]
    del data, samples
    gc.collect()
    assert [client.closed for client in opened] == [1, 1]


def test_a_client_is_not_used_after_fork(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = new()
    next(iter(data))
    monkeypatch.setattr(dataset, "os", SimpleNamespace(getpid=lambda: -1))
    data.close()
    assert opened[0].closed == 0, "it belongs to the parent"
    data._client = opened[0]  # type: ignore[assignment]
    next(iter(data))
    assert len(opened) == 2
    assert len(opened[0].requests) == 1


def test_a_worker_stops_when_its_trainer_died(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = iter(new(retry_delay=0.0))
    next(samples)
    alive = True
    monkeypatch.setattr(dataset, "get_worker_info", lambda: object())
    monkeypatch.setattr(
        dataset.multiprocessing, "parent_process", lambda: SimpleNamespace(is_alive=lambda: alive)
    )
    opened[0].answers = iter([None, 0, None, 0])
    next(samples)
    alive = False
    with pytest.raises(StopIteration):
        next(samples)


def test_bad_arguments() -> None:
    for arguments, text in [
        ({"num_slots": 0}, "num_slots must be at least 1, got 0"),
        ({"retry_delay": -1.0}, "retry_delay"),
        ({"request_timeout": -0.5}, "request_timeout"),
        ({"request_timeout": float("nan")}, "request_timeout"),
    ]:
        with pytest.raises(ConfigError, match=text):
            new(**arguments)
    with pytest.raises(ConfigError, match="model_id must be a string, got int"):
        SoftIterableDataset(3, "ipc:///unused", CONFIG, softs_fast.ShmMedium)  # type: ignore[arg-type]


FIRST = ("a", "ipc:///unused", CONFIG, softs_fast.ShmMedium)


@pytest.mark.parametrize("cls", [SoftIterableDataset, SoftDataLoader])
@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        # num_slots, retry_delay, request_timeout, max_retries
        ((), {}, (8, 0.01, 60.0, None)),
        ((4, 0.5), {}, (4, 0.5, 60.0, None)),
        ((4, 0.5, 7.0), {}, (4, 0.5, 7.0, None)),
        ((4, 0, 7.0), {}, (4, 0, 7.0, None)),
        ((4,), {"retry_delay": 2}, (4, 2, 60.0, None)),
        # softs 0.1.0
        ((4, 10), {}, (4, 0.01, None, 10)),
        ((4, 1, 0.5), {}, (4, 0.5, None, 1)),
        ((4, 10), {"retry_delay": 0.5}, (4, 0.5, None, 10)),
        ((4, 10), {"request_timeout": 5.0}, (4, 0.01, 5.0, 10)),
        ((), {"max_retries": 3}, (8, 0.01, None, 3)),
        ((), {"max_retries": 3, "request_timeout": 5.0}, (8, 0.01, 5.0, 3)),
        ((4, 0.5, 7.0), {"max_retries": 3}, (4, 0.5, 7.0, 3)),
    ],
)
def test_arguments_of_both_versions(
    cls: Any, positional: tuple[Any, ...], named: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    made = cls(*FIRST, *positional, **named)
    data = made if cls is SoftIterableDataset else made.soft_dataset
    assert (data.num_slots, data.retry_delay, data.request_timeout, data.max_retries) == expected


def test_arguments_given_twice() -> None:
    with pytest.raises(TypeError, match="given both by position and by name: retry_delay"):
        SoftIterableDataset(*FIRST, 8, 10, 0.1, retry_delay=0.1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional arguments"):
        SoftIterableDataset(*FIRST, 8, 10, 0.1, 60.0)


def test_loader_passes_the_rest_to_torch(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3, num_workers=0)
    assert loader.dataset is loader.soft_dataset
    batch = next(iter(loader))
    assert batch["x"].shape == (3, 2)
    loader.set_model("b")
    assert loader.model_id == loader.soft_dataset.model_id == "b"
    loader.soft_dataset.close()


def test_a_switch_in_the_middle_of_a_batch(opened: list[ScriptedClient]) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3)
    batches = iter(loader)
    next(batches)
    numbers = iter(range(10, 20))

    def read(slot_id: int) -> bytes:
        number = next(numbers)
        if number == 11:
            loader.set_model("b")
        return CONFIG.encode(x=torch.full((2,), float(number)), y=torch.tensor(number))

    opened[0].medium.read = read
    batch = next(batches)
    assert batch["y"].tolist() == [10, 12, 13], "what came with the switch is dropped, its row used again"
    assert batch["x"].tolist() == [[10, 10], [12, 12], [13, 13]]
    assert opened[0].discards == 1
    assert opened[0].held == []
    loader.soft_dataset.close()


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
    loader.soft_dataset.close()


def test_a_worker_without_a_trainer_hands_over_what_it_has(
    opened: list[ScriptedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = SoftDataLoader(*FIRST, batch_size=3, retry_delay=0.0)
    batches = iter(loader)
    next(batches)
    monkeypatch.setattr(dataset, "_trainer_died", lambda: True)
    opened[0].answers = iter([0, 0, None])
    assert next(batches)["x"].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(StopIteration):
        next(batches)
    loader.soft_dataset.close()


def test_a_half_written_model_id_is_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = new()
    data.set_model("old model")
    view = memoryview(data._model._memory).cast("B")
    old = bytes(view)
    data.set_model("the new model, which is longer")
    new_record = bytes(view)
    for cut in (1, 4, 6, 8, 20):
        view[:] = new_record[:cut] + old[cut:]
        monkeypatch.setattr(dataset.time, "sleep", lambda _: view.__setitem__(slice(None), new_record))
        data._model._seen = (b"", "")
        assert data.model_id == "the new model, which is longer", cut


def _switch(data: SoftIterableDataset, models: list[str], rounds: int) -> None:
    for i in range(rounds):
        data.set_model(models[i % len(models)])


def test_model_ids_from_several_processes() -> None:
    data = new()
    models = ["é" * 128, "short", "", "x" * 200]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_switch, args=(data, models, 3000)) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(data.model_id)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen <= {*models, "a"}
    assert data.model_id in models


def _first_sample_elsewhere(data: SoftIterableDataset, answers: Any) -> None:
    answers.put((data.model_id, data._client is None))
    data.set_model("from the child")


@pytest.mark.timeout(120)
def test_a_spawned_process_shares_the_model_id_and_not_the_client(opened: list[ScriptedClient]) -> None:
    data = new()
    next(iter(data))
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_first_sample_elsewhere, args=(data, answers))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert answers.get() == ("a", True)
    answers.close()
    assert data.model_id == "from the child"
    assert data._client is opened[0]  # type: ignore[comparison-overlap]


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


class Slots:
    """A client of three slots for batches."""

    def __init__(self, data: bytes = SAMPLE) -> None:
        self.medium = SimpleNamespace(read=lambda slot_id: data)
        self.released: list[int] = []

    def release_slot(self, slot_id: int) -> None:
        self.released.append(slot_id)


@pytest.fixture
def slots() -> Slots:
    return Slots()


def test_collate_stacks(slots: Slots) -> None:
    batch = make_collate_fn(slots, CONFIG)([2, 0])  # type: ignore[arg-type]
    assert isinstance(batch, Batch)
    assert batch["x"].tolist() == [[1, 1], [1, 1]]
    assert batch["y"].shape == (2,)
    assert slots.released == [2, 0]
    batch.release()
    assert slots.released == [2, 0]


def test_collate_of_what_cannot_be_decoded() -> None:
    slots = Slots(b"short")
    with pytest.raises(ConfigError, match="Data length 5 != expected 16"):
        make_collate_fn(slots, CONFIG)([1, 2])  # type: ignore[arg-type]
    assert slots.released == [1, 2]
    with pytest.raises(ConfigError, match="cannot stack 0 samples"):
        make_collate_fn(slots, CONFIG)([])  # type: ignore[arg-type]


def test_a_batch_releases_once(slots: Slots) -> None:
    batch = make_collate_fn(slots, CONFIG, auto_release=False)([2, 0])  # type: ignore[arg-type]
    assert slots.released == []
    batch.release()
    batch.release()
    del batch
    assert slots.released == [2, 0]


def test_a_batch_whose_client_is_closed_dies_quietly(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(slot_id: int) -> None:
        raise ConfigError("closed")

    batch = Batch({}, [0], slots)  # type: ignore[arg-type]
    monkeypatch.setattr(slots, "release_slot", refuse)
    with pytest.raises(ConfigError):
        batch.release()
    other = Batch({}, [0], slots)  # type: ignore[arg-type]
    del other, batch


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float16", "int64"])
@pytest.mark.parametrize("lead", [0, 1, 3])
def test_misaligned_fields_decode_to_aligned_tensors(dtype: str, lead: int) -> None:
    config = softs_fast.BatchConfig([TensorSpec("lead", (lead,), "uint8"), TensorSpec("x", (3, 2), dtype)])
    value = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(getattr(torch, dtype))
    data = config.encode(lead=torch.zeros(lead, dtype=torch.uint8), x=value)
    for decoded in (
        config.decode(data)["x"],
        config.decode_single(data, "x"),
        config.decode_batch([data])["x"][0],
    ):
        assert torch.equal(decoded, value)
        assert decoded.data_ptr() % decoded.element_size() == 0
        decoded.zero_()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.t().contiguous().t(),
        lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],
        lambda tensor: tensor.clone().requires_grad_(),
        lambda tensor: tensor.expand(1, 3, 2)[0],
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_encode_of_unusual_tensors(change: Callable[[torch.Tensor], torch.Tensor], dtype: str) -> None:
    tensor = torch.arange(6.0).reshape(3, 2).to(getattr(torch, dtype))
    spec = TensorSpec("x", (3, 2), dtype)
    assert spec.encode(change(tensor)) == spec.encode(tensor)
    config = softs_fast.BatchConfig([spec])
    assert config.encode(x=change(tensor)) == config.encode(x=tensor) == spec.encode(tensor)
