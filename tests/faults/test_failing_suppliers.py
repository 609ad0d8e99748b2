"""A supplier that fails at once, beside a good one that takes its time: no order ends by it, and it gets few of them."""

import time

import pytest
import torch
from waiting import eventually

import softs_fast
from softs_fast import Broker, EndpointConfig, ShmMedium, SoftIterableDataset, Supplier, TCPMedium

CONFIG = softs_fast.make_xy_config((8,), "float32", (), "int64")


def slow(product_id: str, sequence: int) -> bytes:
    time.sleep(0.02)
    return CONFIG.encode(x=torch.zeros(8), y=torch.tensor(sequence))


# By lanes, and by the broker.
@pytest.mark.parametrize("medium", [ShmMedium, TCPMedium])
def test_a_stream_goes_on_beside_a_supplier_that_fails(
    frontend: str,
    backend: str,
    medium: type,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def broken(product_id: str, sequence: int) -> bytes:
        calls.append(sequence)
        raise FileNotFoundError("no such checkpoint")

    with (
        Broker(EndpointConfig(frontend, backend)) as broker,
        Supplier(broken, ["p"], backend, medium, CONFIG.nbytes()),
        Supplier(slow, ["p.?"], backend, medium, CONFIG.nbytes()),
    ):
        eventually(lambda: broker.stats.connected_suppliers == 2, "two suppliers")
        data = SoftIterableDataset("p", frontend, CONFIG, medium, 16, ordered=True)
        assert [int(sample["y"]) for sample, _ in zip(data, range(60), strict=False)] == list(range(60))
        data.close()
    assert "given up" not in caplog.text
    # By lane it was called 4,330 times while nothing kept it back; the number grows with the time that this takes.
    assert 1 <= len(calls) < 1000
