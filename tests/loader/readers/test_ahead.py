"""Batches that are put together while the user works on the one before."""

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from native_threads import thread_names
from waiting import eventually

import softs_fast as sf
from softs_fast.loader import sample_iterator as stream
from softs_fast.loader.readers import copying as batches

N_ROWS = 4
CONFIG = sf.BatchConfig([sf.TensorSpec("x", (8192,), "float64"), sf.TensorSpec("y", (2,), "int64")])


def generate(product_id: str, sequence: int) -> bytes:
    """A sample of 64 KiB that says everywhere which it is."""
    value = float(int(product_id) * 1_000_000 + sequence)
    return struct.pack("<d", value) * 8192 + struct.pack("<qq", int(product_id), sequence)


@pytest.fixture(autouse=True)
def always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user works long enough."""
    monkeypatch.setattr(stream, "_BUSY_S", 0.0)


@pytest.fixture
def market(frontend: str, backend: str) -> Iterator[str]:
    endpoints = sf.EndpointConfig(frontend, backend)
    with sf.Broker(endpoints), sf.Supplier(generate, ["[0-9]+"], backend, sf.ShmMedium, CONFIG.nbytes()):
        yield frontend


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The products of which batches were begun ahead."""
    products = []
    begin = batches.GatherReader.begin

    def noted(self: batches.GatherReader, product_id: str) -> None:
        begin(self, product_id)
        if self._ahead is not None:
            products.append(product_id)

    monkeypatch.setattr(batches.GatherReader, "begin", noted)
    return products


def loader(frontend: str, **arguments: Any) -> sf.SoftDataLoader:
    arguments = {"num_slots": 16, "batch_size": N_ROWS, **arguments}
    return sf.SoftDataLoader("1", frontend, CONFIG, sf.ShmMedium, **arguments)


def numbers(batch: dict[str, torch.Tensor], product: int) -> list[int]:
    """The numbers of the samples of a batch, each of which must be whole."""
    assert batch["y"][:, 0].tolist() == [product] * N_ROWS
    found: list[int] = batch["y"][:, 1].tolist()
    wanted = torch.tensor(found, dtype=torch.float64) + product * 1_000_000
    assert torch.equal(batch["x"], wanted[:, None].expand(-1, 8192)), "torn"
    return found


def test_an_ordered_stream_comes_in_order_and_goes_on_in_the_next_iterator(
    market: str, begun: list[str]
) -> None:
    data = loader(market, ordered=True)
    expected = 0
    for n_batches in (1, 5, 20):
        iterator = iter(data)
        for _ in range(n_batches):
            assert numbers(next(iterator), 1) == list(range(expected, expected + N_ROWS))
            expected += N_ROWS
        del iterator
    assert len(begun) >= 20


def test_a_switch_drops_what_was_begun(market: str, begun: list[str]) -> None:
    data = loader(market, ordered=True)
    iterator = iter(data)
    for round_ in range(10):
        for product in (1, 2):
            data.set_model(str(product))
            for batch in range(3):
                first = (3 * round_ + batch) * N_ROWS
                assert numbers(next(iterator), product) == list(range(first, first + N_ROWS))
    assert {"1", "2"} <= set(begun)
    del iterator


def test_every_sample_comes_once_while_the_user_works(market: str, begun: list[str]) -> None:
    data = loader(market)
    seen: set[int] = set()
    for batch, _ in zip(data, range(50), strict=False):
        found = numbers(batch, 1)
        assert not seen.intersection(found)
        seen.update(found)
        time.sleep(0.001)
    assert begun


def test_a_dataset_that_is_closed_leaves_no_thread(market: str) -> None:
    data = loader(market)
    iterator = iter(data)
    for _ in range(3):
        next(iterator)
    del iterator
    assert "softs-ahead" in thread_names(), "a native one, which is not in Python's list"
    data.soft_dataset.close()
    del data
    eventually(lambda: "softs-ahead" not in thread_names(), "the end of the thread")


def test_small_batches_and_users_in_a_hurry_have_none(
    frontend: str, backend: str, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = sf.BatchConfig([sf.TensorSpec("y", (2,), "int64")])
    endpoints = sf.EndpointConfig(frontend, backend)
    with sf.Broker(endpoints):
        with sf.Supplier(lambda p: bytes(16), ["1"], backend, sf.ShmMedium, 16):
            data = sf.SoftDataLoader("1", frontend, small, sf.ShmMedium, num_slots=16, batch_size=4)
            for _ in zip(data, range(5), strict=False):
                pass
            data.soft_dataset.close()
        monkeypatch.setattr(stream, "_BUSY_S", 1e9)
        with sf.Supplier(generate, ["1"], backend, sf.ShmMedium, CONFIG.nbytes()):
            data = loader(frontend)
            for _ in zip(data, range(5), strict=False):
                pass
            data.soft_dataset.close()
    assert begun == []


def test_a_client_refuses_targets_that_do_not_fit(market: str) -> None:
    with sf.Client(market, sf.ShmMedium, CONFIG.nbytes(), 4) as client:
        with pytest.raises(sf.ConfigError, match="9 bytes, which are not 2 rows"):
            client.gather_ahead("1", 2, [(0, bytearray(9))])
        with pytest.raises(sf.ConfigError, match="read-only"):
            client.gather_ahead("1", 2, [(0, bytes(8))])
        outside = [(CONFIG.nbytes() - 1, bytearray(8))]
        with pytest.raises(sf.SegmentError):
            eventually(lambda: client.gather_ahead("1", 2, outside).finish(), "a sample")
        ahead = client.gather_ahead("1", 2, [(0, bytearray(16))])
        ahead.finish()
        assert ahead.finish() == 0, "it was asked before"
