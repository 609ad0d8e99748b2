"""A switch reaches other processes while they sleep: none of them has to ask for a sample first."""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from served import served
from waiting import eventually

import softs_fast
from softs_fast import (
    ConfigError,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    _core,
)
from softs_fast.loader.product.shared_id import SharedModelId
from softs_fast.loader.product.subscription import Subscription, Wanted

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")

# Python 3.12 and later warn about a fork of a process with threads, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def calls(frontend: str, backend: str) -> Iterator[list[str]]:
    """The products that a supplier was called for."""
    called: list[str] = []

    def generate(product_id: str) -> bytes:
        called.append(product_id)
        return CONFIG.encode(x=torch.zeros(8), y=torch.tensor(int(product_id)))

    with served(frontend, backend, generate, [r"\d"], ShmMedium, CONFIG.nbytes()):
        yield called


def take_one_and_idle(data: SoftIterableDataset, pipe: Connection) -> None:
    samples = iter(data)
    pipe.send(int(next(samples)["y"]))
    pipe.recv()
    pipe.send(int(next(samples)["y"]))
    data.close()
    pipe.send([thread.name for thread in threading.enumerate() if thread.name == "softs-watch"])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_process_that_asks_for_nothing_follows(calls: list[str], frontend: str, method: str) -> None:
    data = SoftIterableDataset("1", frontend, CONFIG, ShmMedium, num_slots=4)
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=take_one_and_idle, args=(data, there), daemon=True)
    process.start()
    assert here.recv() == 1
    # What a supplier has begun keeps its slot until samples are asked for.
    eventually(lambda: len(calls) == 5, "samples in all slots")
    data.set_model("2")
    eventually(lambda: "2" in calls, "an order for the new model")
    here.send(None)
    assert here.recv() == 2
    assert here.recv() == [], "threads that were left"
    process.join()
    assert process.exitcode == 0


def test_workers_of_a_loader_follow(calls: list[str], frontend: str) -> None:
    loader = SoftDataLoader(
        "1", frontend, CONFIG, ShmMedium, 8, batch_size=2, num_workers=2, multiprocessing_context="fork"
    )
    batches = iter(loader)
    assert next(batches)["y"].tolist() == [1, 1]
    # torch has asked for five batches of two by now, and each worker has eight slots.
    eventually(lambda: len(calls) == 5 * 2 + 2 * 8, "samples in all slots")
    for model in ("2", "3"):
        loader.set_model(model)
        # Sixteen, but for a slot with a sample that was not published yet.
        eventually(lambda: calls.count(model) >= 15, "orders of both workers")  # noqa: B023
    del batches


def test_a_process_that_makes_the_switches_has_no_thread(calls: list[str], frontend: str) -> None:
    data = SoftIterableDataset("1", frontend, CONFIG, ShmMedium)
    next(iter(data))
    assert "softs-watch" not in {thread.name for thread in threading.enumerate()}


def test_a_sleeper_wakes_up_for_another_name(frontend: str) -> None:
    model, seen = SharedModelId("a"), []
    version = model.version()

    def watch() -> None:
        nonlocal version
        with softs_fast.Client(frontend, ShmMedium, 64, 1) as client:
            model.sleep_while(version - 1, "a", client.leave_after)
            while "end" not in seen:
                model.sleep_while(version, "a", client.leave_after)
                version = model.version()
                seen.append(model.read())

    thread = threading.Thread(target=watch)
    thread.start()
    time.sleep(0.05)
    assert seen == []
    for name in ("b", "c", "end"):
        process = multiprocessing.get_context("fork").Process(target=model.write, args=(name,))
        process.start()
        process.join()
        eventually(lambda: name in seen, name)  # noqa: B023
    thread.join()


def test_a_product_that_is_wanted_no_more_is_left_without_the_interpreter(
    calls: list[str], frontend: str
) -> None:
    memory, word = bytearray(4), 0
    with softs_fast.Client(frontend, ShmMedium, CONFIG.nbytes(), 4) as client:
        client.hello()
        client.follow("1")
        assert client.request_sample("1", 5_000) is not None
        # Another product than the one that is followed is none of its business.
        memory[0] = 1
        assert not client.leave_after("2", memory, word)
        assert client.request_sample("1", 5_000) is not None
        assert client.leave_after("1", memory, word)
        for product in "12":
            assert client.request_sample(product, 50) is None
        assert not client.leave_after("1", memory, word), "it was left before"
        client.follow("1")
        assert client.request_sample("1", 5_000) is not None
    assert set(calls) == {"1"}


def test_a_client_that_follows_the_product_already_keeps_its_orders(calls: list[str], frontend: str) -> None:
    with softs_fast.Client(frontend, ShmMedium, CONFIG.nbytes(), 4) as client:
        client.hello()
        client.follow("1")
        for _ in range(8):
            slot = client.request_sample("1", 5_000)
            assert slot is not None
            client.release_slot(slot)
            client.follow("1")
    assert len(calls) <= 8 + 4


class Flipping:
    """A product that is another one at each reading that is asked for, and the first one again right after it."""

    def __init__(self) -> None:
        self.shared = SharedModelId("1")
        self.n_flips = 0
        self.version, self.sleep_while, self.wake = (
            self.shared.version,
            self.shared.sleep_while,
            self.shared.wake,
        )

    def read(self) -> str:
        if self.n_flips == 0:
            return self.shared.read()
        self.n_flips -= 1
        self.shared.write("2")
        product = self.shared.read()
        self.shared.write("1")
        return product


def test_a_product_that_is_wanted_again_while_another_is_followed(calls: list[str], frontend: str) -> None:
    model = Flipping()
    with softs_fast.Client(frontend, ShmMedium, CONFIG.nbytes(), 4) as client:
        client.hello()
        subscription = Subscription(client, model, watches=False)
        subscription.update()
        assert client.request_sample("1", 5_000) is not None
        model.n_flips = 1
        wanted = subscription.update()
        assert wanted.product == "2"
        assert wanted.version != model.version()
        # A sleep on the product that was read, instead of the version before it, would not end; nor one on a product
        # read now.
        subscription.sleep_while(wanted)
        assert client.request_sample("2", 50) is None, "it was left"
        assert subscription.update() == Wanted(model.version(), "1")
        assert client.request_sample("1", 5_000) is not None


@pytest.mark.parametrize("n_flips", [1, 2, 5])
def test_a_watching_thread_ends_at_the_product_that_is_wanted(
    calls: list[str], frontend: str, n_flips: int
) -> None:
    model = Flipping()
    with softs_fast.Client(frontend, ShmMedium, CONFIG.nbytes(), 8) as client:
        client.hello()
        subscription = Subscription(client, model, watches=True)
        # Two iterators of this process, the second of which is late.
        for _ in range(2):
            subscription.enter({}, None)
        model.n_flips = n_flips
        model.shared.write("3")
        eventually(lambda: model.n_flips == 0, "flips while the thread follows")
        eventually(lambda: subscription._followed == "1", "the product that is wanted")
        assert client.request_sample("1", 5_000) is not None
        client.close()
        subscription.close()


def test_memory_without_a_word(frontend: str) -> None:
    for memory in (bytearray(3), memoryview(bytearray(8))[1:]):
        with (
            softs_fast.Client(frontend, ShmMedium, 64, 1) as client,
            pytest.raises(ConfigError, match="four aligned bytes"),
        ):
            client.leave_after("a", memory, 0)
        for act in (_core.wake, _core.count_change):
            with pytest.raises(ConfigError, match="four aligned bytes"):
                act(memory)
    with pytest.raises(ConfigError, match="read-only"):
        _core.count_change(bytes(8))


@pytest.mark.parametrize(
    ("options", "in_order"), [({}, False), ({"ordered": True}, False), ({"in_order": True}, True)]
)
def test_batches_come_as_they_are_there(options: dict[str, Any], in_order: bool) -> None:
    loader = SoftDataLoader("1", "ipc:///tmp/unserved", CONFIG, ShmMedium, **options)
    assert loader.in_order is in_order
