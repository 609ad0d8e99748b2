"""Slots that are released twice: the second release changes nothing."""

import pytest
from waiting import eventually

from softs_fast import Broker, Client, ConfigError, EndpointConfig, ShmMedium, Supplier


def test_a_second_release_overwrites_no_sample(frontend: str, backend: str) -> None:
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(lambda product_id: b"a sample", ["p"], backend, ShmMedium, 8),
        Client(frontend, ShmMedium, 8, 2, scribble=True) as client,
    ):
        slot = client.request_sample("p", 30_000)
        assert slot is not None
        client.release_slot(slot)
        eventually(
            lambda: [client.medium.read(i) for i in range(2)] == [b"a sample"] * 2, "both are finished"
        )
        with pytest.raises(ConfigError, match="not held"):
            client.release_slot(slot)
        with pytest.raises(ConfigError, match="does not exist"):
            client.release_slot(1 << 63)
        assert client.medium.read(slot) == b"a sample"
        for _ in range(2):
            held = client.request_sample("p", 30_000)
            assert held is not None
            assert client.medium.read(held) == b"a sample"
