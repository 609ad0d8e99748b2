"""A switch of the model by another thread than the one that iterates: suppliers hear of it with their next order."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from waiting import eventually

import softs_fast
from softs_fast import (
    Broker,
    Client,
    EndpointConfig,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    Supplier,
)

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")


class Teachers:
    """Suppliers that wait for permission in each call. A call that began with permission needs none later."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.calls: list[str] = []
        self.n_waiting = 0
        self._lock = threading.Lock()

    def generate(self, product_id: str) -> bytes:
        with self._lock:
            self.calls.append(product_id)
            waits = not self.may_go_on.is_set()
            self.n_waiting += waits
        if waits:
            assert self.may_go_on.wait(30)
            with self._lock:
                self.n_waiting -= 1
        return CONFIG.encode(x=torch.zeros(8), y=torch.tensor(int(product_id)))

    def withhold(self) -> None:
        """Let all calls wait that begin from now on."""
        with self._lock:
            self.may_go_on.clear()


N_SUPPLIERS = 2


@pytest.fixture
def teachers(frontend: str, backend: str) -> Iterator[Teachers]:
    """They make the products 0 to 9."""
    made = Teachers()

    def supplier() -> Supplier:
        return Supplier(made.generate, [r"\d"], backend, ShmMedium, CONFIG.nbytes())

    with Broker(EndpointConfig(frontend, backend)), supplier(), supplier():
        yield made


def samples_of(frontend: str, kind: str) -> tuple[Any, SoftIterableDataset]:
    if kind == "samples":
        data = SoftIterableDataset("1", frontend, CONFIG, ShmMedium, num_slots=16)
        return iter(data), data
    loader = SoftDataLoader(
        "1",
        frontend,
        CONFIG,
        ShmMedium,
        num_slots=16,
        batch_size=2,
        zero_copy=kind == "blocks",
        ordered=kind == "ordered",
    )
    return iter(loader), loader.soft_dataset


def is_all_made(data: SoftIterableDataset, product_id: str) -> bool:
    """Whether no order of a product waits for a supplier, or is with one."""
    assert data._open is not None
    return "0 orders wait" in str(data._open.client.diagnose(product_id, 0))


@pytest.mark.parametrize("kind", ["samples", "batches", "blocks", "ordered"])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_no_supplier_begins_two_more_samples_of_the_old_model(
    teachers: Teachers, frontend: str, kind: str, is_waiting: bool
) -> None:
    samples, data = samples_of(frontend, kind)
    got: list[list[int]] = []

    def take() -> None:
        got.append(next(samples)["y"].reshape(-1).tolist())

    def take_many() -> None:
        for _ in range(20):
            take()

    n_before = 0
    for old, new in [(1, 2), (2, 3), (3, 2), (2, 1)]:
        # Until the lane has all suppliers, and its orders.
        got.clear()
        take_many()
        assert {number for numbers in got for number in numbers} == {old}
        if not is_waiting:
            # The student has taken as many as were taken here.
            enough = sum(map(len, got)) * (2 if n_before else 1) + 12
            eventually(lambda: teachers.calls[n_before:].count(str(old)) >= enough, "there are enough")  # noqa: B023
            # An ordered stream would wait for one that a supplier has claimed and not begun.
            eventually(lambda old=old: is_all_made(data, str(old)), "all are made")
        teachers.withhold()
        student = threading.Thread(target=take_many)
        if is_waiting:
            student.start()
        else:
            # As many as it takes to wake a supplier.
            for _ in range(4 // len(got[0])):
                take()
        n_busy = N_SUPPLIERS if is_waiting else 1
        eventually(lambda n_busy=n_busy: teachers.n_waiting >= n_busy, "suppliers work")
        n_before = len(teachers.calls)
        data.set_model(str(new))
        got.clear()
        teachers.may_go_on.set()
        if not is_waiting:
            eventually(lambda: str(new) in teachers.calls[n_before:], "samples are made before a request")  # noqa: B023
            student.start()
        student.join(30)
        assert not student.is_alive()
        assert teachers.calls[n_before:].count(str(old)) <= N_SUPPLIERS
        # The iterator may have had one of the old model in its hands.
        assert all(set(numbers) == {new} for numbers in got[is_waiting:])


@pytest.mark.parametrize("how", ["request_sample", "gather", "lease"])
def test_a_wait_for_a_product_that_is_over_ends(teachers: Teachers, frontend: str, how: str) -> None:
    client = Client(frontend, ShmMedium, CONFIG.nbytes(), 4, block=2 if how == "lease" else 1)
    client.follow("unserved")
    rows = bytearray(2 * CONFIG.nbytes())
    got: list[Any] = []

    def wait() -> None:
        if how == "gather":
            got.append(client.gather("unserved", 2, 0, [(0, rows)], 3_600_000))
        else:
            got.append(getattr(client, how)("unserved", 3_600_000))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    client.follow("1")
    waiter.join(30)
    assert not waiter.is_alive()
    assert not got[0]
    wait()
    assert not got[1], "it is over, so there is nothing to wait for"
    client.close()
