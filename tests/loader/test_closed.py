"""What is asked of a client that is closed, itself or through the iterators of its dataset, raises the same error."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from served import served

import softs_fast as sf
from softs_fast.loader import sample_iterator as stream

CONFIG = sf.make_xy_config((8192,), "float64", (), "int64")
CLOSED = "this client is closed; open another one"


def generate(product_id: str) -> bytes:
    return CONFIG.encode(x=torch.zeros(8192, dtype=torch.float64), y=torch.tensor(1))


@pytest.fixture
def market(frontend: str, backend: str) -> Iterator[str]:
    with served(frontend, backend, generate, ["m"], sf.ShmMedium, CONFIG.nbytes()):
        yield frontend


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.request_sample("m", 100),
        lambda client: client.request_slot("m"),
        lambda client: client.get_completed(),
        lambda client: client.poll_completions(),
        lambda client: client.hello(),
        lambda client: client.get_stats(),
        lambda client: client.discard(),
        lambda client: client.seek("m", 0, 1, 1, 0),
        lambda client: client.lease("m", 100),
        lambda client: client.gather("m", 1, 0, [(0, bytearray(8))], 100),
        lambda client: client.gather_ahead("m", 1, [(0, bytearray(8))]),
    ],
    ids=lambda call: call.__code__.co_names[0],
)
def test_a_closed_client_refuses(market: str, call: Callable[[sf.Client], Any]) -> None:
    client = sf.Client(market, sf.ShmMedium, CONFIG.nbytes(), 4)
    slot = client.request_sample("m", 10_000)
    assert slot is not None
    client.close()
    with pytest.raises(sf.SegmentError, match=CLOSED):
        call(client)
    client.release_slot(slot)
    client.close()


def test_what_was_copied_ahead_is_not_handed_out(market: str) -> None:
    client = sf.Client(market, sf.ShmMedium, CONFIG.nbytes(), 4)
    ahead = client.gather_ahead("m", 1, [(0, bytearray(8))])
    client.close()
    with pytest.raises(sf.SegmentError, match=CLOSED):
        ahead.finish()


def test_a_wait_ends_with_an_error(market: str) -> None:
    client = sf.Client(market, sf.ShmMedium, CONFIG.nbytes(), 4)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            client.request_sample("unserved", 60_000)
        except sf.SegmentError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.1)
    client.close()
    waiting.join()
    assert str(told[0]) == CLOSED


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"zero_copy": True},
        {"batch_size": None},
        {"batch_size": None, "zero_copy": True},
        {"num_workers": 2},
    ],
    ids=str,
)
def test_iterators_of_a_closed_client(
    market: str, options: dict[str, Any], is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_BUSY_S", 0.0 if is_busy else 1e9)
    with sf.SoftDataLoader(
        "m", market, CONFIG, sf.ShmMedium, **{"num_slots": 16, "batch_size": 4} | options
    ) as data:
        iterator = iter(data)
        next(iterator)
        next(iterator)
    with pytest.raises(sf.SegmentError, match=CLOSED):
        next(iterator)
    assert next(iter(data))["y"].unique().tolist() == [1]
    data.close()
